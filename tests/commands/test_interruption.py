"""An interrupted run keeps its finished cases; --resume runs the others."""

import hashlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

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


def start(hpcdl, *arguments):
    """Start a run in its own process group, as a shell does."""
    return subprocess.Popen(
        hpcdl.hpcdl("run", *arguments, "-o", "o"),
        cwd=hpcdl.folder,
        env=hpcdl.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # tests that run in the background ignore SIGINT, and a child inherits that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


def parts(hpcdl):
    return sorted((hpcdl.folder / "o/parts").glob("*.h5"))


def wait_for_parts(hpcdl, count, run):
    """Wait until ``run`` has finished ``count`` cases."""
    deadline = time.monotonic() + LIMIT
    while len(parts(hpcdl)) < count:
        assert run.poll() is None, run.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def wait_for_orphans(folder):
    """Wait until all processes in ``folder`` have ended."""
    deadline = time.monotonic() + LIMIT
    while any(_works_in(process, folder) for process in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _works_in(process, folder):
    try:
        return (process / "cwd").readlink() == folder
    except OSError:
        return False


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
        run = start(hpcdl, suite, "--resume")
        time.sleep(0.2)
        if chance.random() < 0.8:  # otherwise during the start
            wait_for_parts(hpcdl, len(kept) + chance.randrange(3), run)
            time.sleep(chance.uniform(0, 0.1))
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        wait_for_orphans(hpcdl.folder)
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
    run = start(hpcdl, suite, *options)
    wait_for_parts(hpcdl, 2, run)
    send(run)
    output = run.communicate(timeout=LIMIT)[0]
    assert run.returncode == 75, output
    assert "Traceback" not in output
    kept = content(parts(hpcdl))
    assert 2 <= len(kept) < CASES
    return output, kept


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
    wait_for_orphans(each.folder)
    assert len(names(each.folder / "o")) == len(kept)
