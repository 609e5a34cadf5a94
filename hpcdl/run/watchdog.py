"""A thread on each rank that ends the job when a case exceeds its time limit or makes no progress.

It is a thread because the main thread may be blocked inside the MPI library. It wakes every 15 s, so that it does
not disturb measurements. It calls no MPI function. It ends its own process; the launcher then ends the job.

Without a time limit the criterion is progress, because the total time of a case is unknown. An operation that has
waited for half an hour while its rank computed nothing is taken for a deadlock.
"""

import os
import sys
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Final

from hpcdl.exit_codes import FAILED
from hpcdl.fabric.mpi.comm import Mpi
from hpcdl.fabric.mpi.waits import Wait, waits
from hpcdl.launch.process import STATUS
from hpcdl.run import failed_cases
from hpcdl.run.failed_cases import Failure
from hpcdl.trace.files import open_log

STALL: Final = 1800.0
"""Seconds without progress after which a case without a time limit has failed."""
PERIOD, GRACE = 15.0, 3.0
"""Seconds between two checks, since more would disturb measurements, and for the log of other ranks at the end."""


@dataclass(frozen=True)
class Watched:
    """A case, or the time between two cases."""

    name: str
    part: Path | None
    """Future result of the case; None between cases."""
    limit: float | None
    mpi: Mpi | None
    """Interpreter of this rank's programs, which can wait for other ranks; None if it has no part in the case."""


class Watchdog:
    """Watches this rank, and touches the file ``heartbeat`` for ``hpcdl run``; ``folder``: of the run."""

    folder: Path | None = None

    def __init__(
        self, rank: int, heartbeat: Path | None = None, exit_process: Callable[[int], None] = os._exit
    ) -> None:
        self._rank = rank
        self._heartbeat = heartbeat
        self._exit = exit_process
        self._changed = Event()
        self._watched = Watched("before the first case", None, STALL, None)
        Thread(target=self._serve, name="hpcdl-watchdog", daemon=True).start()

    def begin(self, case: str, part: Path, limit: float | None, mpi: Mpi | None) -> None:
        """Watch a case. ``mpi``: interpreter of this rank's programs if it takes part in the case."""
        self._watched = Watched(case, part, limit, mpi)
        self._changed.set()

    def end(self, case: str) -> None:
        """Watch the time after ``case``: collecting and writing results, and the start of the next case."""
        self._watched = Watched(f"after {case}", None, STALL, None)
        self._changed.set()

    def _serve(self) -> None:
        watched: Watched | None = None
        elapsed = quiet = 0.0
        seen: Hashable = None
        while True:
            if watched is not self._watched:
                watched, elapsed, quiet, seen = self._watched, 0.0, 0.0, None
            period = min(PERIOD, STALL / 10)
            if watched.limit is not None:
                period = max(0.01, min(period, watched.limit - elapsed))
            before = monotonic()
            if self._changed.wait(period):
                self._changed.clear()
            if self._heartbeat is not None:
                with suppress(OSError):  # hpcdl run has ended
                    os.utime(self._heartbeat)
            # the time in which the job was suspended does not count
            passed = min(monotonic() - before, 2 * period)
            elapsed += passed
            state = _state(watched.mpi) if watched.mpi and watched.limit is None else None
            quiet = quiet + passed if state is not None and state == seen else 0.0
            seen = state
            if watched is not self._watched:
                continue
            if (error := self._error(watched, elapsed, quiet)) is not None:
                self._describe(watched, error)
                if watched is self._watched:  # the case may have ended meanwhile
                    self._exit(FAILED)
                    return

    def _error(self, watched: Watched, elapsed: float, quiet: float) -> str | None:
        if watched.limit is not None and elapsed >= watched.limit:
            return f"the time limit of {watched.limit:g} s has passed"
        if quiet >= STALL:
            return f"no operation has ended for {quiet:.0f} s"
        if watched.part is not None and (failure := failed_cases.recorded(watched.part)) is not None:
            return failure.error if failure.by_watchdog else None  # the failed rank ends the job itself
        return None

    def _describe(self, watched: Watched, error: str) -> None:
        writer = Thread(target=self._log, args=(watched, error), daemon=True)
        begin = monotonic()
        writer.start()
        writer.join(GRACE)  # the disk or the terminal may hang
        # other ranks notice a recorded failure at their next check
        grace = GRACE + (0.0 if watched.limit is not None else min(PERIOD, STALL / 10))
        sleep(max(0.0, begin + grace - monotonic()))

    def _log(self, watched: Watched, error: str) -> None:
        lines = [f"rank {self._rank}, {wait}" for wait in _waits(watched.mpi)] if watched.mpi else []
        lines = lines or [f"rank {self._rank} {'has left' if watched.mpi else 'has no part in'} the case"]
        failure = Failure(watched.name, error, self._rank, "\n".join(lines), by_watchdog=True)
        first = watched.part is None or failed_cases.record(watched.part, failure)
        if first:
            lines.insert(0, f"FAILED {failure}")
        text = "".join(f"{line}\n" for line in lines)
        if self.folder is not None:
            append(self.folder / "log.txt", text)
        if first and STATUS not in os.environ:  # otherwise hpcdl run starts the ranks again
            text += "hpcdl: continue with the other cases by --resume\n"
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())


def _waits(mpi: Mpi) -> list[Wait]:
    """Return the waits of a rank's programs; none while programs end."""
    try:
        return waits(mpi)
    except (KeyError, AttributeError, RuntimeError, ValueError, IndexError):  # of frames that end meanwhile
        return []


def _state(mpi: Mpi) -> Hashable:
    """Return a value that changes with each operation; None while a program computes or ends."""
    waiting = _waits(mpi)
    if not waiting or any(not wait.operation for wait in waiting):
        return None
    progress = mpi.messages, mpi.bytes, mpi.compute_ns, len(mpi.events or ())
    return progress, frozenset((wait.operation, wait.begin) for wait in waiting)


def append(log: Path, text: str) -> None:
    """Append to a log; a rank whose node has no access to it writes nothing."""
    with suppress(OSError):
        descriptor = open_log(log, create=False)
        os.write(descriptor, text.encode())  # one call: ranks write at the same time
        os.close(descriptor)
