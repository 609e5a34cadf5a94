"""A case that fails, hangs or cannot run does not affect the results of other cases."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hpcdl as library
from hpcdl import suite
from hpcdl.run import failed_cases as failures
from hpcdl.run.case_loop import _misplaced

from .conftest import LIMIT, OTHER, TRAIN, Install

SCHEMES = """
import time
from hpcdl.aggregation.ring import ring

async def all_raise(comm, buffer):
    raise ValueError("two lines\\nas one")

async def one_raises(comm, buffer):
    if comm.rank == 1:
        raise RuntimeError("no wheels")
    await comm.recv(buffer, 1)

async def one_ends(comm, buffer):
    import os
    if comm.rank == 1:
        os.kill(os.getpid(), 9)
    await comm.recv(buffer, 1)

async def forgetful(comm, buffer):
    await ring(comm, buffer[: len(buffer) // 2])

async def stuck(comm, buffer):
    if comm.rank == 0:
        await comm.recv(buffer, 1, 9)
    elif comm.rank == 1:
        await comm.start(wait_concurrently(comm, buffer))
    else:
        await comm.native("allreduce", buffer)

async def wait_concurrently(comm, buffer):
    await comm.send(buffer, 2, 3)
    await comm.recv(buffer, 2, 5)

async def slow(comm, buffer):
    time.sleep(0.02)
    await ring(comm, buffer)
"""


def schemes(*names, ranks=2, more=""):
    listed = ", ".join(f'"{name if name == "ring" else f"mine:{name}"}"' for name in names)
    return (
        f'[[case]]\nkind = "collective"\naggregation = [{listed}]\nranks = {ranks}\n'
        f"message_bytes = 64\nrepetitions = 3\n{more}\n"
    )


@pytest.fixture(autouse=True)
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(SCHEMES)


def log(install):
    return install.log("o/log.txt")


def finished(install):
    """Return the aggregations of the finished cases, sorted."""
    return sorted(case["aggregation"] for case in library.read(install.folder / "o").described)


def order(install):
    """Return the aggregations of the cases in the order of their start, the data of a training."""
    return [line.split("-")[2] for line in log(install).splitlines() if line.endswith(" ...")]


def failed_cases(install):
    (run,) = install.report()["runs"]
    assert not run["complete"]
    return {case["case"].split("-")[2]: (case["rank"], case["error"]) for case in run["failed_cases"]}


POISONED = """
from functools import partial

from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.traits import Strategy

TRAITS = Strategy(compresses=True)

async def poisoned(comm, session):
    replica = session.replica
    for step in range(session.steps):
        rate = session.learning_rate(step)
        with session.journal.step(session.inputs.epoch(step), rate) as outcome:
            await gradient(comm, session, partial(session.inputs.load, step, comm.rank, comm.size), outcome)
            if comm.rank == 1 and step == 2:
                replica.gradients[7] = float("nan")
            await session.reduce(comm, slice(0, replica.gradients.size))
            session.optimizer.update(replica.parameters, replica.gradients, rate)
"""


@pytest.fixture(scope="module", params=[sys.executable, OTHER], ids=["hpcdl", "other"])
def failed(request, tmp_path_factory):
    """Return an install with a run of cases that fail in several ways, and the process that has ended."""
    if request.param is None:
        pytest.skip("HPCDL_OTHER_PYTHON is not set: Python with hpcdl on another MPI library")
    install = Install(request.param, tmp_path_factory.mktemp("failed"))
    (install.folder / "mine.py").write_text(SCHEMES)
    (install.folder / "poison.py").write_text(POISONED)
    training = f'{TRAIN}ranks = 3\nsteps = 4\ntraining = "poison:poisoned"\n'
    exchange = 'aggregation = "sharded_parameter_server"\ncompression = "one_bit"\n'
    suite = install.suite(
        schemes("all_raise", "one_raises", "one_ends"),
        training + exchange,
        schemes("stuck", ranks=3, more="timeout_seconds = 2"),
        schemes("ring", "forgetful"),
    )
    return install, install("run", suite, "-o", "o")


def test_cases_that_fail_do_not_affect_the_others(failed):
    """A case that fails on all ranks leaves them the job; the others need a new one."""
    install, ended = failed
    assert ended.returncode == 1
    assert ended.stderr.count("hpcdl: starting the ranks again for the remaining cases") == 4
    schemes = "mine:all_raise mine:one_raises mine:one_ends digits mine:stuck ring mine:forgetful"
    assert order(install) == schemes.split()
    assert finished(install) == ["mine:forgetful", "ring"]
    assert "Traceback" in log(install)
    assert "Traceback" not in ended.stdout + ended.stderr


def test_a_failed_case_is_recorded_with_its_first_rank_and_error_and_so_is_a_wrong_result(failed):
    install, ended = failed
    failures = failed_cases(install)
    rank, error = failures.pop("mine:stuck")
    assert rank in {0, 1, 2}
    assert error == "the time limit of 2 s has passed"
    rank, error = failures.pop("digits")  # no rank waits for the message that is not sent
    assert rank == 1
    assert error.startswith("FloatingPointError: step 2: gradient of conv1.weight: ")
    assert failures == {
        "mine:all_raise": (0, "ValueError: two lines as one"),
        "mine:one_raises": (1, "RuntimeError: no wheels"),
        "mine:one_ends": (1, "its process ended during this case, and the job with it"),
    }
    case = "collective-allreduce-mine:all_raise-p2-64B: rank 0: ValueError"
    assert f"[1/7] FAILED {case}: two lines as one (and on 1 more ranks)\n" in ended.stdout
    page = (install.folder / "o/report.md").read_text()
    assert "FAILED: 6 cases of 7." in page
    assert f"FAILED case {case}" in page
    (line,) = [line for line in ended.stdout.splitlines() if line.endswith("WRONG RESULT")]
    assert "mine:forgetful" in line
    assert "FAILED case collective-allreduce-mine:forgetful-" in page
    assert [case["correct"] for case in install.report()["cases"]] == [True, False]


def test_of_a_deadlock_the_log_names_the_operation_of_each_rank(failed):
    for line in (
        "rank 0, main program in stuck, line 24 of mine.py: waits in recv from rank 1, tag 9\n",
        "rank 1, main program in stuck, line 26 of mine.py: waits in join of started program 1\n",
        "rank 1, started program 1 in wait_concurrently, line 32 of mine.py: waits in recv from rank 2, tag 5\n",
        "rank 2, main program in stuck, line 28 of mine.py: waits in native allreduce of all ranks\n",
    ):
        assert line in log(failed[0])


def test_a_resumed_run_ends_with_the_case_that_failed(failed):
    install = Install(failed[0].python, failed[0].folder / "resumed")
    shutil.copytree(failed[0].folder / "o", install.folder / "o")
    raising = 'raise ValueError("two lines\\nas one")'
    (install.folder / "mine.py").write_text(SCHEMES.replace(raising, "await ring(comm, buffer)"))
    ended = install("run", install.suite(schemes("all_raise", "slow", "ring")), "-o", "o", "--resume")
    assert ended.returncode == 0, ended.stdout
    assert order(install)[-2:] == ["mine:slow", "mine:all_raise"]
    assert library.read(install.folder / "o").complete
    assert len(list((install.folder / "o/parts").glob("*.failed"))) == 4


def test_under_mpirun_a_failed_case_ends_the_job_and_resuming_continues(either):
    file = either.suite(schemes("one_raises", "ring"))
    command = ("run", file, "-o", "o", "--resume")
    first = either(*command, under=either.mpirun(2))
    assert first.returncode != 0
    # stderr has the line too, but a launcher may lose the last lines of a rank that aborts the job
    assert "FAILED collective-allreduce-mine:one_raises-p2-64B: rank 1: RuntimeError: no wheels" in log(either)
    second = either(*command, under=either.mpirun(2))
    assert second.returncode != 0
    assert order(either) == ["mine:one_raises", "ring", "mine:one_raises"]
    assert finished(either) == ["ring"]
    assert failed_cases(either) == {"mine:one_raises": (1, "RuntimeError: no wheels")}


def test_a_suspended_rank_fails_its_case_only(hpcdl):
    many = schemes("slow").replace("repetitions = 3", "repetitions = 100000")
    run = hpcdl.start("run", hpcdl.suite(many, schemes("ring")), "-o", "o", "--case-timeout", "3")
    hpcdl.wait_until(lambda: " ..." in log(hpcdl), run)
    stopped = hpcdl.processes()["rank 1"]
    os.kill(stopped, signal.SIGSTOP)
    assert run.wait(LIMIT) == 1, hpcdl.log()
    assert not Path(f"/proc/{stopped}").exists()
    assert finished(hpcdl) == ["ring"]
    assert "FAILED collective-allreduce-mine:slow-p2-64B: rank 0: the time" in log(hpcdl)


LAUNCHES = """
import os
from hpcdl.aggregation.ring import ring

async def sometimes(comm, buffer):
    if os.environ["HPCDL_LAUNCH"][0] in os.environ["FAILING"] and comm.rank == 1:
        os.kill(os.getpid(), 9)
    await ring(comm, buffer)
"""


@pytest.mark.parametrize(("failing", "left"), [("1", 1), ("12", 0)])
def test_a_launch_without_a_result_leaves_the_report_to_the_others(hpcdl, failing, left):
    (hpcdl.folder / "launches.py").write_text(LAUNCHES)
    case = '[[case]]\nkind = "collective"\naggregation = "launches:sometimes"\nranks = 2\nmessage_bytes = 64\n'
    ended = hpcdl("run", hpcdl.suite(case), "-o", "o", "--launches", "2", FAILING=failing)
    assert ended.returncode == 1
    line = "hpcdl: o/launch-1: ended without a finished case; the report has the other launches"
    assert (line in ended.stderr) == (hpcdl.folder / "o/report.md").exists() == bool(left)
    if left:
        assert hpcdl.report()["cases"][0]["launches"] == left


def test_cases_that_need_one_host_are_found_by_the_placement_of_ranks():
    text = (
        '[suite]\nname = "s"\n[[case]]\nkind = "collective"\naggregation = ["two_shot", "ring"]\n'
        "ranks = [2, 4]\nmessage_bytes = 64\n"
    )
    chosen = suite.parse(text, "s.toml")
    every = range(len(chosen.cases))
    names = lambda hosts: [chosen.cases[number].name[21:-4] for number in _misplaced(chosen, every, hosts)]
    one, other = ("node", "a"), ("node", "b")
    assert names([one] * 4) == []
    assert names([one, one, other, other]) == ["two_shot-p4"]
    assert names([one, other, one, other]) == ["two_shot-p2", "two_shot-p4"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small file system")
@pytest.mark.parametrize("kilobytes", [4, 64])
def test_a_full_disk_ends_the_run_with_one_message(either, kilobytes):
    place = either.folder / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", place], check=True)
    try:
        ended = either("run", either.suite(f"{TRAIN}ranks = 2\nsteps = 400\n"), "-o", "small/o")
    finally:
        subprocess.run(["umount", place], check=True)
    assert ended.returncode == 1
    assert ended.stderr.count("hpcdl:") == 1
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("text", ["[" * 100_000, '{"case": 1, "error": "x"}', "{}", "null", '{"case": "x"'])
def test_a_damaged_record_of_a_failure_is_none(tmp_path, text):
    (tmp_path / "x.failed").write_text(text)
    assert failures.read(tmp_path) == {}
    assert failures.recorded(tmp_path / "0000-x.h5") is None
