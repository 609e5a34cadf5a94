"""Work on a second thread: its result, its errors, and what happens meanwhile."""

import threading
import time

import numpy as np
import pytest

from hpcdl.fabric.beside import Worker
from hpcdl.fabric.patience import Patience


def test_result_and_error_reach_the_caller():
    worker = Worker(Patience(1))
    assert worker.run(lambda: 7, lambda: False) == 7
    with pytest.raises(ZeroDivisionError):
        worker.run(lambda: 1 // 0, lambda: False)
    assert worker.run(lambda: None, lambda: False) is None


def test_work_has_the_callers_error_settings():
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        Worker(Patience(1)).run(lambda: np.ones(2) / np.zeros(2), lambda: False)
    with np.errstate(all="ignore"):
        assert np.isinf(Worker(Patience(1)).run(lambda: np.ones(2) / np.zeros(2), lambda: False)).all()


def test_work_is_elsewhere_and_the_caller_is_kept_busy():
    """The work ends only because of what happens meanwhile."""
    worker, here, seen, enough = Worker(Patience(1)), threading.get_ident(), [], threading.Event()

    def meanwhile():
        seen.append(threading.get_ident())
        if len(seen) == 3:
            enough.set()
        return True

    where = worker.run(lambda: enough.wait(60) and threading.get_ident(), meanwhile)
    assert where not in {here, False}
    assert set(seen) == {here}


def test_work_within_work_is_done_at_once():
    worker, inner = Worker(Patience(1)), []

    def meanwhile():
        if not inner:
            inner.append(worker.run(threading.get_ident, lambda: False))
        return True

    worker.run(lambda: time.sleep(0.01) or 1, meanwhile)
    assert inner in ([], [threading.get_ident()])
    done = threading.Event()
    worker.run(lambda: done.wait(60), lambda: (meanwhile(), done.set()))
    assert inner == [threading.get_ident()]
