"""An interrupted run keeps its finished cases; --resume runs the others."""

import hashlib
import os
import random
import signal
import time

import pytest

import hpcdl as library

from .conftest import LIMIT

CASES = 20
SUITE = (
    '[[case]]\nkind = "collective"\naggregation = ["slow:slow_ring", "slow:slow_tree"]\nranks = 2\n'
    f"message_bytes = [{', '.join(str(4 * size) for size in range(CASES // 2))}]\nrepetitions = 5\nwarmup = 0\n"
)
SLOW = """
import os
import time
from hpcdl.aggregation.ring import ring
from hpcdl.aggregation.tree import tree

PAUSE = float(os.environ.get("PAUSE", "0.04"))

async def slow_ring(comm, buffer):
    time.sleep(PAUSE)
    await ring(comm, buffer)

async def slow_tree(comm, buffer):
    time.sleep(PAUSE)
    await tree(comm, buffer)
"""
QUICK = {"PAUSE": "0"}
"""Environment of a run that is not interrupted."""


@pytest.fixture(autouse=True)
def slow(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)


def parts(hpcdl):
    return sorted((hpcdl.folder / "o/parts").glob("*.h5"))


def content(files):
    return {file: (file.stat().st_mtime_ns, hashlib.sha256(file.read_bytes()).digest()) for file in files}


def names(folder):
    return library.read(folder).cases["case"].tolist()


def check_complete(hpcdl, finished_before):
    """Check that the run folder has every case once, and that earlier cases did not run again."""
    run = library.read(hpcdl.folder / "o")
    assert run.complete
    assert len(run.cases) == CASES
    assert run.cases["case"].is_unique
    assert run.cases["correct"].all()
    assert len(parts(hpcdl)) == CASES
    assert finished_before.items() <= content(parts(hpcdl)).items()


def test_a_run_killed_twice_resumes(hpcdl):
    """SIGKILL to the process group at a random time after the start."""
    chance = random.Random(5)
    suite = hpcdl.suite(SUITE)
    kept = {}
    killed_during_cases = 0
    for _ in range(2):
        run = hpcdl.start("run", suite, "-o", "o", "--resume")
        time.sleep(0.2)
        if chance.random() < 0.8:  # otherwise during the start
            count = len(kept) + chance.randrange(3)
            hpcdl.wait_until(lambda count=count: len(parts(hpcdl)) >= count, run)
            time.sleep(chance.uniform(0, 0.1))
        os.killpg(run.pid, signal.SIGKILL)
        run.wait(LIMIT)
        hpcdl.wait_until(lambda: not hpcdl.processes())
        now = content(parts(hpcdl))
        assert kept.items() <= now.items()
        assert all(library.read(file).complete for file in now)
        killed_during_cases += len(now) > len(kept)
        kept = now
    assert killed_during_cases
    assert len(kept) < CASES
    assert len(names(hpcdl.folder / "o")) == len(kept)  # readable without run.h5

    ended = hpcdl("run", suite, "-o", "o", "--resume", **QUICK)
    assert ended.returncode == 0, ended.stderr
    assert f"resuming: {len(kept)} of {CASES} cases are finished" in ended.stdout
    check_complete(hpcdl, kept)


def stopped(hpcdl, suite, send, *options):
    """Start a run and ``send`` it a signal after two cases; return its output and its finished cases."""
    run = hpcdl.start("run", suite, "-o", "o", *options)
    hpcdl.wait_until(lambda: len(parts(hpcdl)) >= 2, run)
    send(run)
    assert run.wait(LIMIT) == 75, hpcdl.log()
    assert "Traceback" not in hpcdl.log()
    kept = content(parts(hpcdl))
    assert 2 <= len(kept) < CASES
    return hpcdl.log(), kept


def test_sigusr1_finishes_the_case_in_progress_and_other_cases_may_be_added_in_front(either):
    """Slurm can send SIGUSR1 before the time limit: the report is written, too.

    A suite may run in portions: resuming finds cases by their content and not by their position.
    """
    suite = either.suite(SUITE)
    usr1 = lambda run: run.send_signal(signal.SIGUSR1)
    output, kept = stopped(either, suite, usr1, "--case", "*slow_tree*")
    assert f"interrupted after {len(kept)} of {CASES // 2} cases; continue with --resume" in output
    run = library.read(either.folder / "o/run.h5")
    assert not run.complete
    assert len(run.cases) == len(kept)
    ended = either("run", suite, "-o", "o", "--resume", **QUICK)
    assert ended.returncode == 0, ended.stderr
    check_complete(either, kept)
    order = ["slow_tree" in name for name in names(either.folder / "o")]
    assert order == [False] * (CASES // 2) + [True] * (CASES // 2)


def test_ctrl_c_ends_all_ranks(each):
    suite = each.suite(SUITE)
    output, kept = stopped(each, suite, lambda run: os.killpg(run.pid, signal.SIGINT))
    assert output.count("hpcdl: interrupted; finished cases are kept, continue with --resume") == 1
    each.wait_until(lambda: not each.processes())
    assert len(names(each.folder / "o")) == len(kept)
