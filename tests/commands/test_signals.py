"""A signal that ends one process of a run ends all of them, for any process and time."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from .conftest import LIMIT, TRAIN

SUITE = f"""{TRAIN}ranks = 2
steps = 80
training = ["synchronous", {{name = "softsync", collect = 1}}]
"""
KILLS = [
    ("hpcdl", "SIGKILL", "middle"),
    ("hpcdl", "SIGINT", "middle"),
    ("hpcdl", "SIGHUP", "middle"),
    ("hpcdl", "SIGQUIT", "middle"),
    ("launcher", "SIGINT", "start"),
    ("launcher", "SIGQUIT", "middle"),
    ("launcher", "SIGKILL", "middle"),
    ("rank 0", "SIGHUP", "middle"),
    ("rank 0", "SIGINT", "middle"),
    ("rank 1", "SIGINT", "middle"),
    ("rank 1", "SIGKILL", "end"),
    ("hpcdl", "SIGHUP", "segment"),
    ("hpcdl", "SIGTERM", "segment"),
]
"""Process, signal, and time of the signal."""


def start(install):
    return install.start("run", install.suite(SUITE), "-o", "o")


def wait_until_all_are_gone(install):
    try:
        install.wait_until(lambda: not install.processes())
    finally:
        for process in install.processes().values():
            os.kill(process, signal.SIGKILL)


def segments(process):
    """Return the files that a process shares in memory."""
    return {Path(name) for name in re.findall(r"/dev/shm/\S+", Path(f"/proc/{process}/maps").read_text())}


def by_library():
    """Return kills by MPI library; without grids every second kill, which alternate between both libraries."""
    for number, kill in enumerate(KILLS):
        for place, library in enumerate(("hpcdl", "other")):
            is_left_out = number % 2 or (number // 2 + place) % 2
            yield pytest.param(library, *kill, marks=[pytest.mark.grid] if is_left_out else [])


@pytest.mark.parametrize(("each", "target", "name", "moment"), [*by_library()], indirect=["each"])
def test_a_signal_to_one_process_ends_all(each, target, name, moment):
    run = start(each)
    each.wait_until(lambda: target in each.processes(), run)
    begun = {"middle": " ...", "end": "[2/2]"}.get(moment, "")
    each.wait_until(lambda: begun in each.log("o/log.txt"), run)
    if moment == "segment":  # the library makes the first of them while it starts
        each.wait_until(lambda: "rank 0" in each.processes() and segments(each.processes()["rank 0"]), run)
    if moment == "middle":
        time.sleep(0.1)
    processes = each.processes()
    shared = segments(processes["rank 0"]) if moment in {"middle", "segment"} else set()
    if target in processes:  # at the end it may be gone
        os.kill(processes[target], signal.Signals[name])
    run.wait(LIMIT)
    wait_until_all_are_gone(each)
    assert shared or moment in {"start", "end"}
    assert not [path for path in shared if path.exists()]


def and_in_grids(usual, others):
    return [*usual.split(), *(pytest.param(name, marks=pytest.mark.grid) for name in others.split())]


@pytest.mark.parametrize("name", and_in_grids("SIGHUP SIGTERM", "SIGQUIT SIGUSR1"))
def test_a_signal_to_tune_ends_its_ranks_and_its_launches_continue(either, name):
    given = ("tune", "allreduce", "-b", "64", "-e", "64", "-n", "2", "-r", "2", "-a", "ring", "-o", "tuned")
    run = either.start(*given)
    either.wait_until(lambda: "rank 1" in either.processes(), run)
    run.send_signal(signal.Signals[name])
    assert run.wait(LIMIT) == 75, either.log()
    wait_until_all_are_gone(either)
    assert either.log().endswith("hpcdl: interrupted; finished cases are kept, continue with --resume\n")


def test_a_stop_request_while_ranks_start_is_orderly(each):
    """The ranks have no handler yet, and the launcher may have none."""

    def catches_it():
        """Return True if the process has a handler for the signal (proc_pid_status(5))."""
        mask = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{run.pid}/status").read_text(), re.MULTILINE)[1]
        return bool(int(mask, 16) >> (signal.SIGUSR1 - 1) & 1)

    run = start(each)
    each.wait_until(catches_it, run)
    run.send_signal(signal.SIGUSR1)
    assert run.wait(LIMIT) == 75, each.log()
    # the first case may end before the signal comes
    assert re.search("interrupted after [01] of 2 cases; continue with --resume", each.log())


@pytest.mark.parametrize("moment", [0.02, 0.18, 1.62])
@pytest.mark.parametrize("name", and_in_grids("SIGUSR1 SIGINT SIGTERM", "SIGHUP SIGKILL"))
def test_a_signal_in_the_first_seconds_ends_all(each, name, moment):
    run = start(each)
    time.sleep(moment)
    number = signal.Signals[name]
    run.send_signal(number)
    code = run.wait(LIMIT)
    wait_until_all_are_gone(each)
    text = each.log()
    # the signal ends an interpreter that has not come to hpcdl yet
    if code != -number and "Fatal Python error: init" not in text:
        assert code in {0, 75}, text
        assert "Traceback" not in text


ERRORS = """
from hpcdl.aggregation.ring import ring

async def wrong(comm, buffer):
    if comm.rank == 1:
        raise {error}("an error of one rank")
    await ring(comm, buffer)
"""
WRONG = """
[[case]]
kind = "collective"
aggregation = "errors:wrong"
ranks = 3
message_bytes = 4096
repetitions = 5
"""


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit"])
def test_any_exception_of_one_rank_ends_all(each, error):
    (each.folder / "errors.py").write_text(ERRORS.format(error=error))
    ended = each("run", each.suite(WRONG), "-o", "o")
    assert ended.returncode == 1
    assert f"{error}: an error of one rank" in ended.stderr
    wait_until_all_are_gone(each)
