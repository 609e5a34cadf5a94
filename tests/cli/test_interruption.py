"""A run that is stopped, whenever and however, keeps its finished cases and goes on where it was."""

import hashlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

import hpcdl as library

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
"""For a run that is not to be stopped."""


@pytest.fixture(autouse=True)
def slow(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)


def start(hpcdl, *arguments):
    """A run in a process group of its own, as a shell would start it."""
    return subprocess.Popen(
        hpcdl.hpcdl("run", *arguments, "-o", "o"),
        cwd=hpcdl.folder,
        env=hpcdl.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # whoever runs the tests in the background has SIGINT ignored, and a child would inherit it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


def parts(hpcdl):
    return sorted((hpcdl.folder / "o/parts").glob("*.h5"))


def wait_for_parts(hpcdl, count, run):
    """Until ``run`` has finished so many cases."""
    deadline = time.monotonic() + 30
    while len(parts(hpcdl)) < count:
        assert run.poll() is None, run.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def wait_for_orphans(folder):
    """Until the ranks whose launcher was killed have noticed."""
    deadline = time.monotonic() + 30
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
    """The run folder holds every case once, and what was finished before was not run again."""
    run = library.read(hpcdl.folder / "o")
    assert run.complete
    assert len(run.cases) == CASES
    assert run.cases["case"].is_unique
    assert run.cases["correct"].all()
    assert len(parts(hpcdl)) == CASES
    assert finished_before.items() <= content(parts(hpcdl)).items()


def test_killed_ten_times(hpcdl):
    """SIGKILL to the whole process group, at any moment from the start of Python on."""
    chance = random.Random(5)
    suite = hpcdl.suite(SUITE)
    kept = {}
    killed_at_work = 0
    for _ in range(10):
        run = start(hpcdl, suite, "--resume")
        time.sleep(0.2)
        if chance.random() < 0.8:  # else somewhere in the start-up
            wait_for_parts(hpcdl, len(kept) + chance.randrange(3), run)
            time.sleep(chance.uniform(0, 0.1))
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        wait_for_orphans(hpcdl.folder)
        now = content(parts(hpcdl))
        assert kept.items() <= now.items()
        assert all(library.read(file).complete for file in now)
        killed_at_work += len(now) > len(kept)
        kept = now
    assert killed_at_work > 2
    assert len(kept) < CASES
    assert len(names(hpcdl.folder / "o")) == len(kept)  # readable without run.h5, too

    ended = hpcdl("run", suite, "-o", "o", "--resume", **QUICK)
    assert ended.returncode == 0, ended.stderr
    assert f"resuming: {len(kept)} of {CASES} cases are there" in ended.stdout
    check_complete(hpcdl, kept)


def stopped(hpcdl, suite, send):
    """Start a run, ``send`` it something after two cases; its output, and what it kept."""
    run = start(hpcdl, suite)
    wait_for_parts(hpcdl, 2, run)
    send(run)
    output = run.communicate(timeout=30)[0]
    assert run.returncode == 75, output
    assert "Traceback" not in output
    kept = content(parts(hpcdl))
    assert 2 <= len(kept) < CASES
    return output, kept


def resumed(hpcdl, suite, kept):
    ended = hpcdl("run", suite, "-o", "o", "--resume", **QUICK)
    assert ended.returncode == 0, ended.stderr
    check_complete(hpcdl, kept)


def test_told_by_the_batch_system(each):
    """SIGUSR1 some time before the limit: the case in flight is finished, then all is put in order."""
    suite = each.suite(SUITE)
    output, kept = stopped(each, suite, lambda run: run.send_signal(signal.SIGUSR1))
    assert f"interrupted after {len(kept)} of {CASES} cases; go on with --resume" in output
    run = library.read(each.folder / "o/run.h5")
    assert not run.complete
    assert len(run.cases) == len(kept)
    resumed(each, suite, kept)


def test_ctrl_c(each):
    suite = each.suite(SUITE)
    output, kept = stopped(each, suite, lambda run: os.killpg(run.pid, signal.SIGINT))
    assert output.count("hpcdl: interrupted; finished cases are kept, go on with --resume") == 1
    wait_for_orphans(each.folder)
    assert len(names(each.folder / "o")) == len(kept)
    resumed(each, suite, kept)


def test_terminated(hpcdl):
    """SIGTERM to the process that was started, and to none of its children."""
    output, _ = stopped(hpcdl, hpcdl.suite(SUITE), lambda run: run.terminate())
    assert "hpcdl: interrupted; finished cases are kept, go on with --resume" in output
    wait_for_orphans(hpcdl.folder)


def test_ranks_told_under_mpirun(hpcdl):
    """There is no process of ours between the launcher and the ranks."""
    command = [*hpcdl.mpirun(2), *hpcdl.hpcdl("run", hpcdl.suite(SUITE), "-o", "o")]
    run = subprocess.Popen(
        command,
        cwd=hpcdl.folder,
        env=hpcdl.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for_parts(hpcdl, 2, run)
    run.send_signal(signal.SIGUSR1)
    output = run.communicate(timeout=30)[0]
    assert run.returncode == 75, output
    assert not library.read(hpcdl.folder / "o").complete


def test_a_case_is_known_by_what_it_is_and_not_by_its_place(hpcdl):
    """A suite may be run in portions, and cases may be added in front."""
    suite = hpcdl.suite(SUITE)
    assert hpcdl("run", suite, "-o", "o", "--case", "*tree-p2-?B", **QUICK).returncode == 0
    kept = content(parts(hpcdl))
    assert len(kept) == 3  # of 0, 4 and 8 bytes
    resumed(hpcdl, suite, kept)
    order = ["slow_tree" in name for name in names(hpcdl.folder / "o")]
    assert order == [False] * (CASES // 2) + [True] * (CASES // 2)
