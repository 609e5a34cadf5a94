"""Start the ranks of a run; start them again for the remaining cases after a case has ended the job."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final

from hpcdl.exit_codes import FAILED
from hpcdl.launch import process
from hpcdl.launch.mpirun import (
    COMMAND,
    TERMINAL,
    RankProcesses,
    launch_environment,
    python_command,
    segments_removed_at_end,
)
from hpcdl.run import failed_cases
from hpcdl.suite import Suite

PERIOD, KILL_DELAY = 0.25, 5.0
"""Seconds between two checks, and between SIGTERM and SIGKILL."""
HEARTBEAT_TIMEOUT: Final = 900.0
"""Seconds without a heartbeat of rank 0, which has one every 15 s unless it writes a long trace."""
START_NOTICE: Final = 20.0
"""Seconds without a rank after which the user sees a line."""
END_TIMEOUT: Final = 60.0
"""Seconds until the launcher must have ended, once rank 0 has ended or a case has failed."""


def supervise(
    launcher: subprocess.Popen[bytes],
    heartbeat: Callable[[], object],
    is_ending: Callable[[], bool],
    before_kill: Callable[[], None] = lambda: None,
) -> None:
    """Wait for the launcher; kill it when rank 0 has no heartbeat, or when the launcher does not end in time.

    ``heartbeat`` returns a value that changes when ranks start and while rank 0 runs; ``is_ending`` returns True
    once the launcher should end.
    """
    start_notice = START_NOTICE
    quiet, seen = 0.0, heartbeat()
    while True:
        limit = END_TIMEOUT if is_ending() else HEARTBEAT_TIMEOUT
        with suppress(subprocess.TimeoutExpired):
            launcher.wait(min(PERIOD, limit))
            return
        # counted in periods: time in which this process itself was stopped does not count
        quiet += min(PERIOD, limit)
        now = heartbeat()
        if now != seen:
            quiet, seen, start_notice = 0.0, now, inf
        if quiet >= start_notice:
            advice = process.batch_advice(os.environ) or "the start is slow, or mpirun hangs"
            print(f"hpcdl: no rank has started within {quiet:.0f} s; {advice}", file=sys.stderr, flush=True)
            start_notice = inf
        if quiet >= limit:
            print(f"hpcdl: no heartbeat of rank 0 for {quiet:.0f} s; killing {launcher.args!r}", file=sys.stderr)
            before_kill()
            _end(launcher, 0, KILL_DELAY)
            return


def modified(*paths: Path) -> tuple[int, ...]:
    """Return the modification time of each file (ns); 0 for a file that does not exist."""
    times = []
    for path in paths:
        try:
            times.append(path.stat().st_mtime_ns)
        except OSError:
            times.append(0)
    return tuple(times)


def run_cases(suite: Suite, folder: Path, ranks: int, arguments: Sequence[str], typed: Sequence[str]) -> int:
    """Run ``hpcdl`` with ``arguments`` on ``ranks`` ranks until no case is left; return the exit code.

    ``arguments`` are the ``typed`` ones and additions. Each relaunch follows a new failed case of ``suite``, so
    that their number is limited. Raises NoLauncher.
    """
    failed_before: set[str] = set()
    parts = folder / "parts"
    with tempfile.TemporaryDirectory() as folder_name:
        status = Path(folder_name) / "status"
        while True:
            fault_tolerant = any(case.failure for case in suite.cases)
            code, first = run_job(ranks, arguments, typed, status, parts, fault_tolerant=fault_tolerant)
            if code is None:
                if first is not None:
                    failed_cases.blame(parts, str(status), first, failed_before)
                new = failed_cases.new(parts, str(status), failed_before)
                failed_before |= new.keys()
                for failure in new.values():
                    print(f"hpcdl: FAILED {failure}", file=sys.stderr)
                if not new:
                    line = "the ranks ended early; finished cases are kept, continue with --resume"
                    print(f"hpcdl: {line}", file=sys.stderr)
                    return FAILED
                finished = {path.stem.rpartition("-")[2] for path in parts.glob("*.h5")}
                left = {case.digest for case in suite.cases} - failed_before - finished
                aim = "for the remaining cases" if left else "to write the report"
                print(f"hpcdl: starting the ranks again {aim}", file=sys.stderr)
            elif code != process.RELAUNCH:
                return code
            if "--resume" not in arguments:
                arguments = [*arguments, "--resume"]


def run_job(
    ranks: int, arguments: Sequence[str], typed: Sequence[str], status: Path, parts: Path, *, fault_tolerant: bool
) -> tuple[int | None, int | None]:
    """Run ``hpcdl`` on ``ranks`` ranks once; return rank 0's exit code, and the rank whose process ended first.

    Rank 0 writes its code to the file ``status``, and perhaps an error, which is printed. Each value is None if it
    is unknown. If this process is killed, the launcher receives SIGTERM. Raises NoLauncher, and KeyboardInterrupt
    as :func:`_handle_signals`.
    """
    begin, alive, on_terminal = time.time_ns(), status.with_name(process.HEARTBEAT), sys.stdout.isatty()
    status.unlink(missing_ok=True)
    alive.touch()
    variables = {process.STATUS: str(status), TERMINAL: "1" if on_terminal else "", COMMAND: shlex.join(typed)}
    variables["COLUMNS"] = str(shutil.get_terminal_size().columns)  # ranks may have another terminal, or none
    with segments_removed_at_end(status), RankProcesses(status.parent, ranks) as processes:
        with subprocess.Popen(
            python_command(ranks, ["-m", "hpcdl", *arguments], fault_tolerant=fault_tolerant),
            env=launch_environment() | variables,
            stdin=subprocess.DEVNULL,
            preexec_fn=process.child_preparation(),  # noqa: PLW1509 - this process has no other thread
        ) as launcher:
            _handle_signals(launcher, status.with_name(process.STOP))
            try:
                supervise(
                    launcher,
                    lambda: (processes.watch(), *modified(alive, status)),
                    lambda: status.exists() or max(modified(*parts.glob("*.failed")), default=0) > begin,
                    processes.forget,
                )
            except KeyboardInterrupt:
                process.request_stop()  # of further launches, if this one has just finished
                _end(launcher, 2, 30)
                if not status.exists():
                    raise
        first = processes.first_ended()
    if not status.exists():
        return None, first
    code, _, error = status.read_text(encoding="utf-8").partition("\n")
    if error:
        print(error, file=sys.stderr)
    return int(code or FAILED), first  # empty: the disk is full


def _handle_signals(launcher: subprocess.Popen[bytes], stop: Path) -> None:
    """Let SIGUSR1 make the file ``stop``, and other signals end the launcher and raise KeyboardInterrupt.

    Ranks look for the file between cases: a signal would kill those that still start, because launchers reset what
    they inherit. The other signals are SIGTERM, SIGHUP and SIGQUIT; Ctrl-C the terminal sends to the launcher too.
    """

    def terminate(_number: int, _frame: object) -> None:
        launcher.terminate()
        raise KeyboardInterrupt

    def ask_to_stop(*_signal: object) -> None:
        process.request_stop()
        stop.touch()

    signal.signal(signal.SIGUSR1, ask_to_stop)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as SIGHUP under nohup
            signal.signal(number, terminate)
    if process.stop_requested():
        ask_to_stop()


def _end(launcher: subprocess.Popen[bytes], *delays: float) -> None:
    """Wait for the end of the launcher; after each delay (s) send SIGTERM, after the last one SIGKILL."""
    for delay in delays:
        with suppress(subprocess.TimeoutExpired):
            launcher.wait(delay)
            return
        launcher.terminate()
    launcher.kill()
    launcher.wait()
