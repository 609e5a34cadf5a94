"""A rank without progress ends its process; a launcher without heartbeat is killed."""

import itertools
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import pytest

from hpcdl.cases import pairwise
from hpcdl.fabric.comm import LIBRARY_CALLS
from hpcdl.run import failed_cases, relaunch
from hpcdl.run.relaunch import modified, supervise
from hpcdl.run.watchdog import Watchdog


class Waiting(NamedTuple):
    operation: str
    begin: int | None


BEGINS = itertools.count()
WAITING = [Waiting("recv from rank 1", 5), Waiting("send to rank 2", 6)]
COMPUTING = [Waiting("recv from rank 1", 5), Waiting("", None)]


class Programs:
    """Programs of a rank: their waits, and the number of its messages."""

    bytes = compute_ns = 0
    events = ()

    def __init__(self, waits, messages=lambda: 0):
        self.waits, self._messages = waits, messages

    messages = property(lambda self: self._messages())


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Return a function that watches a rank and returns an event, set when its process would end."""
    for name, value in {"GRACE": 0.5, "STALL": 0.2, "waits": lambda programs: programs.waits()}.items():
        monkeypatch.setattr(f"hpcdl.run.watchdog.{name}", value)
    (tmp_path / "parts").mkdir()
    (tmp_path / "log.txt").touch()
    part = tmp_path / "parts" / "0000-abc.h5"

    def watch(waits, messages=lambda: 0, limit=None):
        ended = threading.Event()
        dog = Watchdog(3, exit_process=lambda _code: ended.set())
        dog.folder = tmp_path
        dog.begin("mine", part, limit, waits and Programs(waits, messages))
        return dog, ended

    return watch, part, tmp_path / "log.txt"


def test_operations_that_do_not_end_are_a_failure(watched):
    watch, part, log = watched
    _, ended = watch(lambda: WAITING)
    assert ended.wait(20)
    failure = failed_cases.recorded(part)
    assert (failure.case, failure.rank) == ("mine", 3)
    assert failure.error.startswith("no operation has ended for 0 s")
    text = log.read_text()
    assert text.startswith(f"FAILED {failure}\n")
    assert "rank 3, Waiting(operation='recv from rank 1', begin=5)\n" in text


@pytest.mark.parametrize(
    ("waits", "progress"),
    [
        (lambda: COMPUTING, lambda: 0),
        (lambda: WAITING, itertools.count().__next__),
        (lambda: [Waiting("recv from rank 1", next(BEGINS))], lambda: 0),
        (list, lambda: 0),
    ],
    ids=["computes", "moves messages", "begins operations", "has ended"],
)
def test_a_rank_that_makes_progress_is_not_ended(watched, waits, progress):
    _, ended = watched[0](waits, progress)
    assert not ended.wait(1)


def test_a_time_limit_ends_a_rank_that_computes(watched):
    watch, part, _ = watched
    _, ended = watch(lambda: COMPUTING, limit=0.3)
    assert ended.wait(20)
    assert failed_cases.recorded(part).error == "the time limit of 0.3 s has passed"


def test_the_failure_that_another_rank_recorded_is_kept(watched):
    watch, part, log = watched
    first = failed_cases.Failure("mine", "no operation has ended", 1, by_watchdog=True)
    assert failed_cases.record(part, first)
    _, ended = watch(None)
    assert ended.wait(20)
    assert failed_cases.recorded(part).rank == 1
    assert log.read_text() == "rank 3 has no part in the case\n"


def test_a_case_that_ends_is_no_longer_watched(watched):
    dog, ended = watched[0](lambda: WAITING, limit=1e9)
    dog.end("mine")
    dog.begin("next", watched[1], 1e9, Programs(lambda: WAITING))
    assert not ended.wait(1)


def test_ranks_that_wait_between_cases_have_a_limit(watched):
    dog, ended = watched[0](lambda: COMPUTING)
    dog.end("mine")
    assert ended.wait(20)
    assert failed_cases.recorded(watched[1]) is None
    assert "FAILED after mine: rank 3: the time limit of 0.2 s has passed\n" in watched[2].read_text()


def launcher(program):
    return subprocess.Popen([sys.executable, "-c", program])


def test_a_launcher_without_heartbeat_is_killed(tmp_path, capsys, monkeypatch):
    """The launcher ignores SIGTERM."""
    for name, seconds in {"KILL_DELAY": 0.2, "HEARTBEAT_TIMEOUT": 0.5, "START_NOTICE": 0.2}.items():
        monkeypatch.setattr(relaunch, name, seconds)
    ready = tmp_path / "ready"
    program = (
        "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(100)"
    )
    with launcher(program) as run:
        while not ready.exists():
            assert run.poll() is None
            time.sleep(0.01)
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        supervise(run, lambda: modified(ready), lambda: False)
        assert run.returncode == -9
    err = capsys.readouterr().err
    assert "no heartbeat of rank 0 for 0 s" in err
    assert err.count("no rank has started within 0 s; SLURM_JOB_ID=7 is set, so that mpirun asks ") == 1


def test_a_launcher_that_does_not_end_in_time_is_terminated(monkeypatch):
    monkeypatch.setattr(relaunch, "END_TIMEOUT", 0.5)
    with launcher("import time; time.sleep(100)") as run:
        supervise(run, lambda: 0, lambda: True)
        assert run.returncode == -15


def test_a_wait_in_the_library_itself_names_its_peer():
    described = LIBRARY_CALLS[pairwise.Exchanges.spans.__code__]
    assert described({"peer": 1}) == "Sendrecv with rank 1"
    assert not described({}), "it has not chosen one yet, and computes"
