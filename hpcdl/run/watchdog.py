"""A thread on each rank that ends the job when a case exceeds its time limit or makes no progress.

It is a thread because the main thread may be blocked inside the MPI library. It wakes every 15 s, so that it does
not disturb measurements. It calls no MPI function. It ends its own process; the launcher then ends the job.

Without a time limit the criterion is progress, because the total time of a case is unknown. An operation that has
waited for half an hour while its rank computed nothing is taken for a deadlock. The thread reads the operations
from the frames of the rank's programs, suspended or blocked inside the library: operations cost nothing more.
"""

import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from types import CodeType, FrameType
from typing import Final, NamedTuple

from hpcdl.exit_codes import FAILED
from hpcdl.fabric import mpi as fabric_mpi
from hpcdl.fabric.comm import ANY, LIBRARY_CALLS, Locals
from hpcdl.fabric.mpi.comm import Mpi, MpiComm
from hpcdl.fabric.mpi.scheduler import Scheduler
from hpcdl.fabric.task import AnyTask, Task
from hpcdl.launch.process import STATUS
from hpcdl.run import failed_cases
from hpcdl.run.failed_cases import Failure
from hpcdl.trace.files import open_log


class Wait(NamedTuple):
    """A program of a rank and the operation that it waits in."""

    program: str
    """The main program or a started one, and its innermost function."""
    operation: str
    """The operation and its peers; empty while the program computes."""
    begin: int | None
    """Begin of the operation in ns of the clock of traces; None if unknown."""

    def __str__(self) -> str:
        return f"{self.program}: {f'waits in {self.operation}' if self.operation else 'computes'}"


def _recv(local: Locals) -> str:
    source = "any rank" if local["source"] == ANY else f"rank {local['source']}"
    return f"recv from {source}" + ("" if local["tag"] == ANY else f", tag {local['tag']}")


def _exchange(local: Locals) -> str:
    if local["dest"] == local["source"]:
        return f"exchange with rank {local['dest']}, tag {local['tag']}"
    return f"exchange, send to rank {local['dest']} and recv from rank {local['source']}, tag {local['tag']}"


_OPERATIONS: Final[Mapping[CodeType, Callable[[Locals], str]]] = {
    MpiComm.send.__code__: lambda local: f"send to rank {local['dest']}, tag {local['tag']}",
    MpiComm.recv.__code__: _recv,
    MpiComm.exchange.__code__: _exchange,
    MpiComm.native.__code__: lambda local: f"native {local['collective']} of all ranks",
    MpiComm.split.__code__: lambda _: "split by all ranks",
    MpiComm.shrink.__code__: lambda _: "shrink by all ranks that are left",
    MpiComm.allgather_words.__code__: lambda local: (
        f"{'allgather' if len(local['words']) else 'barrier'} of all ranks"
    ),
    Task.__await__.__code__: lambda local: f"join of started program {local['self'].number}",
}
_COMPUTING: Final = {MpiComm.compute.__code__, MpiComm.add.__code__, MpiComm.get.__code__}
_FABRIC: Final = str(Path(fabric_mpi.__file__).parent)


def waits(mpi: Mpi) -> list[Wait]:
    """Return the wait of each program of this rank, the main one first; none while programs end. Thread-safe."""
    try:
        programs = sorted(_programs(mpi), key=lambda program: program[0].number)
        return [_described(task.number, frames, mpi) for task, frames in programs]
    except (KeyError, AttributeError, RuntimeError, ValueError, IndexError):  # of frames that end meanwhile
        return []


def _programs(mpi: Mpi) -> Iterator[tuple[AnyTask, list[FrameType]]]:
    """The unfinished programs, each with its frames from the outermost to the innermost."""
    running: dict[AnyTask, list[FrameType]] = {}
    tasks = set(mpi.programs())
    segment: list[FrameType] = []
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
    while frame is not None:
        if frame.f_code is Scheduler._resume.__code__:  # noqa: SLF001 - it runs the program of the frames inside it
            running[frame.f_locals["task"]] = segment[::-1]
            segment = []
        else:
            if frame.f_code is Scheduler.progress.__code__:  # it has not polled all programs yet
                tasks |= {task for task, _ in frame.f_locals.get("waiting", ())}
            segment.append(frame)
        frame = frame.f_back
    tasks |= running.keys()
    joining = list(tasks)
    while joining:
        waiters = set(joining.pop().waiters) - tasks
        tasks |= waiters
        joining += waiters
    for task in tasks:
        if not task.done:
            yield task, running.get(task) or list(_suspended(task.coroutine))


def _suspended(awaited: object) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine and of the coroutines that it awaits."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            return
        yield frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


def _described(number: int, frames: list[FrameType], mpi: Mpi) -> Wait:
    name, place = f"started program {number}" if number else "main program", ""
    for frame in frames:
        code = frame.f_code
        if code in _COMPUTING:
            return Wait(f"{name}{place}", "", None)
        if code in _OPERATIONS:
            local = frame.f_locals
            comm = local.get("self")
            is_part = isinstance(comm, MpiComm) and comm.size != mpi.comm.size
            of = f" (communicator of {comm.size} ranks)" if comm is not None and is_part else ""
            return Wait(f"{name}{place}", _OPERATIONS[code](local) + of, local.get("begin"))
        if not code.co_filename.startswith(_FABRIC):
            place = f" in {code.co_name}, line {frame.f_lineno} of {Path(code.co_filename).name}"
    if frames and (described := LIBRARY_CALLS.get(frames[-1].f_code)):
        local = frames[-1].f_locals
        return Wait(f"{name}{place}", described(local), local.get("begin"))
    return Wait(f"{name}{place}", "", None)


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
        lines = [f"rank {self._rank}, {wait}" for wait in waits(watched.mpi)] if watched.mpi else []
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


def _state(mpi: Mpi) -> Hashable:
    """Return a value that changes with each operation; None while a program computes or ends."""
    waiting = waits(mpi)
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
