"""Describe the programs of a rank and the operations that they wait in.

A second thread reads the frames of the programs, so that operations cost nothing more: a program may be suspended,
or blocked inside the MPI library. No MPI function is called here.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

from hpcdl.fabric.comm import ANY, LIBRARY_CALLS, Locals
from hpcdl.fabric.mpi.comm import Mpi, MpiComm
from hpcdl.fabric.mpi.scheduler import Scheduler
from hpcdl.fabric.task import AnyTask, Task


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
_FABRIC: Final = str(Path(__file__).parent)


def waits(mpi: Mpi) -> list[Wait]:
    """Return the wait of each program of this rank, the main one first; may be called from a second thread."""
    described = []
    for task, frames in sorted(_programs(mpi), key=lambda program: program[0].number):
        name = f"started program {task.number}" if task.number else "main program"
        described.append(_described(name, frames, mpi))
    return described


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


def _described(name: str, frames: list[FrameType], mpi: Mpi) -> Wait:
    place = ""
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
