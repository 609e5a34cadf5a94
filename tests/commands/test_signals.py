"""A signal that ends one process of a run ends all of them, for any process and time."""

import os
import re
import signal
import subprocess
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
]
"""Process, signal, and time of the signal."""


class Process:
    def __init__(self, pid):
        self.pid = pid
        self.arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
        ranks = [line for line in environment if line.startswith(("PMI_RANK=", "OMPI_COMM_WORLD_RANK="))]
        self.rank = f"rank {ranks[0].partition('=')[2]}" if ranks else None

    def mapped(self):
        return Path(f"/proc/{self.pid}/maps").read_text()

    @property
    def role(self):
        if self.rank and "hpcdl" in self.arguments:
            return self.rank
        if "hpcdl" in self.arguments[:3]:
            return "hpcdl"
        return "launcher" if Path(self.arguments[0]).name in {"mpirun", "prterun"} else "other"


def alive(folder):
    """Return the processes whose current folder is ``folder``, by role; zombies have none."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if (place / "cwd").readlink() == folder:
                process = Process(int(place.name))
                found.setdefault(process.role, process)
        except OSError:  # it has ended
            continue
    return found


def wait_until(happened, run):
    deadline = time.monotonic() + LIMIT
    while not happened():
        assert run.poll() is None, (run.folder / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def default_signals():
    """Restore the handlers of a new process.

    Tests that run in the background ignore SIGINT. Runs in this process leave a handler of SIGUSR1, which the kernel
    still shows for a moment after it has closed the files of a process that starts another program.
    """
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


def start(install, *command):
    """Run the suite, or another command, in the background, as the shell of a batch system does."""
    with (install.folder / "log").open("w") as log:
        run = subprocess.Popen(
            install.hpcdl(*(command or ("run", install.suite(SUITE), "-o", "o"))),
            cwd=install.folder,
            env=install.environment(OMP_NUM_THREADS="1"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=default_signals,  # noqa: PLW1509
        )
    run.folder = install.folder
    return run


def come_to(moment, role, run):
    """Wait for the process of that role, and for the time of the signal."""
    wait_until(lambda: role in alive(run.folder), run)
    log = run.folder / "o/log.txt"
    if moment == "middle":
        wait_until(lambda: log.exists() and " ..." in log.read_text(), run)
        time.sleep(0.1)
    elif moment == "end":
        wait_until(lambda: log.exists() and "[2/2]" in log.read_text(), run)


def wait_until_all_are_gone(folder):
    deadline = time.monotonic() + LIMIT
    while left := alive(folder):
        if time.monotonic() > deadline:
            for process in left.values():
                os.kill(process.pid, signal.SIGKILL)
            pytest.fail(f"still there: {left.keys()}\n{(folder / 'log').read_text()}")
        time.sleep(0.05)


def by_library():
    """Return kills by MPI library; without grids every second kill, which alternate between both libraries."""
    for number, kill in enumerate(KILLS):
        for place, library in enumerate(("hpcdl", "other")):
            is_left_out = number % 2 or (number // 2 + place) % 2
            yield pytest.param(library, *kill, marks=[pytest.mark.grid] if is_left_out else [])


@pytest.mark.parametrize(("each", "target", "name", "moment"), [*by_library()], indirect=["each"])
def test_a_signal_to_one_process_ends_all(each, target, name, moment):
    run = start(each)
    come_to(moment, target, run)
    processes = alive(each.folder)
    mapped = processes["rank 0"].mapped() if moment == "middle" else ""
    if target in processes:  # at the end it may be gone
        os.kill(processes[target].pid, signal.Signals[name])
    run.wait(LIMIT)
    wait_until_all_are_gone(each.folder)
    segments = {*re.findall(r"/dev/shm/\S+", mapped)}
    assert segments or moment != "middle"
    if (target, name) != ("hpcdl", "SIGKILL"):  # whose ranks end by themselves
        assert not [path for path in segments if Path(path).exists()]


@pytest.mark.parametrize(
    "name", ["SIGHUP", "SIGTERM", *(pytest.param(name, marks=pytest.mark.grid) for name in ("SIGQUIT", "SIGUSR1"))]
)
def test_a_signal_to_tune_ends_its_ranks_and_its_launches_continue(either, name):
    given = ("tune", "allreduce", "-b", "64", "-e", "64", "-n", "2", "-r", "2", "-a", "ring", "-o", "tuned")
    run = start(either, *given)
    wait_until(lambda: "rank 1" in alive(run.folder), run)
    run.send_signal(signal.Signals[name])
    assert run.wait(LIMIT) == 75, (either.folder / "log").read_text()
    wait_until_all_are_gone(either.folder)
    assert (
        (either.folder / "log")
        .read_text()
        .endswith("hpcdl: interrupted; finished cases are kept, continue with --resume\n")
    )


def catches(pid, number):
    """Return True if the process has a handler for the signal (proc_pid_status(5))."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_a_stop_request_while_ranks_start_is_orderly(each):
    """The ranks have no handler yet, and the launcher may have none."""
    run = start(each)
    wait_until(lambda: catches(run.pid, signal.SIGUSR1), run)
    run.send_signal(signal.SIGUSR1)
    assert run.wait(LIMIT) == 75, (each.folder / "log").read_text()
    # the first case may end before the signal comes
    assert re.search(
        "interrupted after [01] of 2 cases; continue with --resume", (each.folder / "log").read_text()
    )


@pytest.mark.parametrize("moment", [0.02, 0.18, 1.62])
@pytest.mark.parametrize(
    "name",
    [
        "SIGUSR1",
        "SIGINT",
        "SIGTERM",
        *(pytest.param(name, marks=pytest.mark.grid) for name in ("SIGHUP", "SIGKILL")),
    ],
)
def test_a_signal_in_the_first_seconds_ends_all(each, name, moment):
    run = start(each)
    time.sleep(moment)
    number = signal.Signals[name]
    run.send_signal(number)
    code = run.wait(LIMIT)
    wait_until_all_are_gone(each.folder)
    text = (run.folder / "log").read_text()
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
    wait_until_all_are_gone(each.folder)


def test_a_run_reads_no_standard_input(either):
    """Otherwise a shell's loop over lines would lose lines."""
    reader, writer = os.pipe()
    os.write(writer, b"the next line\n")
    os.close(writer)
    with os.fdopen(reader) as lines:
        command = either.hpcdl("run", either.suite(WRONG.replace("errors:wrong", "ring")), "-o", "o")
        subprocess.run(
            command,
            cwd=either.folder,
            env=either.environment(),
            stdin=lines,
            stdout=subprocess.DEVNULL,
            timeout=LIMIT,
            check=True,
        )
        assert lines.read() == "the next line\n"
