"""Work on a second thread: its result, its errors, its order, and that the first one goes on."""

import threading
import weakref

import numpy as np
import pytest

from hpcdl.fabric.mpi.backoff import Backoff
from hpcdl.fabric.mpi.scheduler import Worker


@pytest.fixture
def worker():
    return Worker(Backoff(1, at_work=True))


def ended(worker, job):
    while not job.done:
        worker.wait()
    return job.result()


def test_result_and_error_reach_the_giver(worker):
    assert ended(worker, worker.give(lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        ended(worker, worker.give(lambda: 1 // 0))
    assert ended(worker, worker.give(lambda: None)) is None


def test_work_has_the_giver_s_error_settings(worker):
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        ended(worker, worker.give(lambda: np.ones(2) / np.zeros(2)))
    with np.errstate(all="ignore"):
        assert np.isinf(ended(worker, worker.give(lambda: np.ones(2) / np.zeros(2)))).all()


def test_the_giver_goes_on_meanwhile(worker):
    """The work ends only because of what happens then."""
    enough = threading.Event()
    job = worker.give(lambda: enough.wait(60) and threading.get_ident())
    for _ in range(3):
        worker.wait()
        assert worker.busy
        assert not job.done
    enough.set()
    assert ended(worker, job) not in {threading.get_ident(), False}
    assert not worker.busy
    assert job.begin < job.end


def test_nothing_of_a_job_lives_on(worker):
    class Held:
        pass

    given, made = Held(), []
    traces = [weakref.ref(given)]

    def work(held=given):
        made.append(weakref.ref(result := Held()))
        return held, result

    del given
    pair = ended(worker, worker.give(work))
    traces += made
    assert all(trace() is not None for trace in traces)
    del pair, work
    assert all(trace() is None for trace in traces)


def test_work_is_done_in_order(worker):
    order, gate = [], threading.Event()
    first = worker.give(lambda: gate.wait(60))
    jobs = [worker.give(lambda number=number: order.append(number)) for number in range(20)]
    assert not order
    gate.set()
    for job in reversed(jobs):
        ended(worker, job)
    assert ended(worker, first)
    assert order == list(range(20))
