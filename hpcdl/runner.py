"""Run a suite's cases in the job this process is in, and leave a run folder."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import threadpoolctl

from hpcdl.clerk import Clerk
from hpcdl.exit_codes import FAILED, INTERRUPTED, OK
from hpcdl.fabric.failure import Failure
from hpcdl.fabric.mpi import Mpi, library_version
from hpcdl.fabric.mpi_failure import fault_tolerant, regroup
from hpcdl.launch.environment import local
from hpcdl.launch.memory import lack_of_memory
from hpcdl.launch.mpirun import AGAIN, intolerance
from hpcdl.nn.backend import backend
from hpcdl.nn.threads import threads
from hpcdl.suite import Suite, UsageError
from hpcdl.trace.recorder import Recorder, to_bytes
from hpcdl.training.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hpcdl.fabric.mpi_comm import MpiComm
    from hpcdl.suite import Case, Scalar

PATIENCE: Final = 3.0
"""Seconds of silence before a user is told what takes so long."""


class Job:
    """The ranks of this job, and smaller communicators for cases that want fewer."""

    def __init__(self, mpi: Mpi) -> None:
        self.mpi = mpi
        self.world = mpi.comm
        self.rank, self._ranks = self.world.rank, self.world.size
        self._smaller: dict[int, MpiComm] = {self.world.size: self.world}
        self._stop = False
        signal.signal(signal.SIGUSR1, self._note_signal)
        self.clock_offset_ns, _ = self.world.clock()
        here = local()
        self.ranks: list[dict[str, Any]] | None = self.world.library.gather(here)
        hosts = self.world.library.allgather((here["slurm_node"], here["hostname"]))
        self._leads_node = hosts.index(hosts[self.world.rank]) == self.world.rank
        self._prepared: set[str] = set()

    def _note_signal(self, _number: int, _frame: object) -> None:
        self._stop = True

    def first(self, ranks: int) -> MpiComm | None:
        """A communicator of the first ``ranks`` ranks, None on the others. Every rank calls."""
        if ranks not in self._smaller:
            inside = self.world.rank < ranks
            self._smaller[ranks] = self.mpi.run(self.world.split(0 if inside else 1))
        return self._smaller[ranks] if self.world.rank < ranks else None

    @property
    def lost(self) -> int:
        """How many ranks have died."""
        return self._ranks - self.world.size

    def bury(self) -> None:
        """Go on without the ranks that died in a case. Every rank that is left calls."""
        self.mpi.comm = self.world = regroup(self.world)

    def stopping(self) -> bool:
        """Whether any rank was told to stop: by SIGUSR1, which Slurm can send before the time limit."""
        self.world.rest()  # rank 0 may be writing, and who waits in a library's collective spins
        return bool(self.world.library.allreduce(int(self._stop)))

    def prepare(self, case: Case, tell: Callable[[str], None]) -> None:
        """Have the kernels of ``case`` ready before it is timed. Every rank calls.

        Where they must be compiled one rank of each node does it, and the others find what it left on the disk.
        """
        if "backend" not in case.settings:
            return
        chosen, dtype = case.settings["backend"], case.settings["dtype"]
        if f"{chosen} {dtype}" in self._prepared:
            return
        self._prepared.add(f"{chosen} {dtype}")
        ready = backend(**chosen).prepare
        if ready is None:
            return
        if self._leads_node:
            line = f"compiling the {dtype} kernels of backend {chosen['name']!r}: once on each kind of processor"
            with _if_it_lasts(lambda: tell(line)):
                ready(dtype)
        self.world.library.Barrier()
        if not self._leads_node:
            ready(dtype)
        self.world.library.Barrier()

    @property
    def nodes(self) -> int:
        """How many hosts the job is on; rank 0 knows."""
        return len({(rank["slurm_node"], rank["hostname"]) for rank in self.ranks or ()})


def run(suite: Suite, folder: Path, mpi: Mpi, *, resume: bool, say: Callable[[str], None]) -> int:
    """Run all cases of ``suite`` that ``folder`` does not hold yet; returns the exit code.

    Every rank of the job calls it. Rank 0 writes one closed file per finished case into ``folder``/parts, and
    at the end ``run.h5`` and ``report.md``; ``say`` shows a line to the user. Raises UsageError.
    """
    wanted = max(case.processes for case in suite.cases)
    if wanted > mpi.comm.size:
        needy = next(case.name for case in suite.cases if case.processes == wanted)
        raise UsageError(
            f"case {needy!r} needs {wanted} ranks and this job has {mpi.comm.size}: start more, or choose "
            f"cases with --case or --set case.ranks=..."
        )
    work = Job(mpi)
    hosts = [(rank["slurm_node"], rank["hostname"]) for rank in work.ranks or ()]
    line = work.world.library.bcast(lack_of_memory(suite.cases, hosts) if hosts else None)
    if line is not None:
        raise UsageError(line)
    clerk = Clerk(suite, folder, work, resume=resume, say=say) if work.world.rank == 0 else None
    work.world.rest()  # rank 0 has read what the folder holds
    todo: list[int] = work.world.library.bcast(clerk.todo if clerk else None)
    mortal = [number for number in todo if suite.cases[number].mortal]
    unfit = intolerance(os.environ, library_version()["library"]) if mortal else None
    if clerk and unfit:
        clerk.refuse(mortal, unfit)
    # a death comes last: what is left then is for another job, which has all its ranks
    todo = [number for number in todo if number not in mortal] + ([] if unfit else mortal)
    while todo:
        number = todo.pop(0)
        case = suite.cases[number]
        if work.stopping():
            if clerk:
                clerk.finish("interrupted")
            return INTERRUPTED
        work.prepare(case, clerk.tell if clerk else lambda _line: None)
        comm = work.first(case.processes)
        if clerk:
            clerk.begin(number, case)
        traces = _run_case(case, work, comm)
        if clerk and traces is not None:
            clerk.keep(number, case, *traces)
        if work.lost and todo:
            if clerk:
                clerk.finish("a rank has died")
            return AGAIN
    failed = clerk.finish() if clerk else False
    work.world.rest()
    return FAILED if work.world.library.bcast(failed) else OK


def _run_case(case: Case, work: Job, comm: MpiComm | None) -> tuple[dict[str, Scalar], list[bytes]] | None:
    """Run a case on the ranks of ``comm``, others being asleep; rank 0 gets its findings and everybody's trace."""
    found, mine = ({}, list[bytes]()) if comm is None else _run_here(case, work, comm)
    if case.mortal:
        work.bury()
    else:
        work.world.rest()
    packed = work.world.library.gather((work.rank, mine))
    if packed is None:
        return None
    traces = dict(packed)
    dead = [rank for rank in range(case.processes) if rank not in traces]
    if case.mortal:
        failure = Failure(**case.settings["failure"])
        found["died"] = ", ".join(str(failure) if rank == failure.rank else f"rank {rank}" for rank in dead)
    nothing = [to_bytes(Recorder().pack())]
    return found, [trace for rank in range(case.processes) for trace in traces.get(rank, nothing)]


def _run_here(case: Case, work: Job, comm: MpiComm) -> tuple[dict[str, Scalar], list[bytes]]:
    """What this rank found, and its trace, or those of the ranks that it simulated."""
    mpi = work.mpi
    trace = case.settings["trace"]
    recorder = Recorder(events=trace != "steps")
    recorder.clock_offset_ns = work.clock_offset_ns

    def before_step(step: int) -> None:
        if trace == "alternating":
            mpi.events = None if step % 2 else recorder.events
        if case.mortal and case.settings["failure"] == {"rank": comm.rank, "step": step}:
            os.kill(os.getpid(), signal.SIGKILL)

    # a training that diverges overflows, and the record shows it; warnings would show it p times a step
    allowed = case.settings["threads"]
    with threadpoolctl.threadpool_limits(allowed), threads(allowed), np.errstate(all="ignore"):
        program = case.module.program(case.settings, Journal(recorder, mpi.gauge, before_step))
        mpi.awake(comm)
        mpi.events = recorder.events
        try:
            found = mpi.run(program(fault_tolerant(comm) if case.mortal else comm))
        finally:
            mpi.events = None
    return found, [to_bytes(one.pack()) for one in recorder.virtual or [recorder]]


@contextmanager
def _if_it_lasts(say: Callable[[], None]) -> Iterator[None]:
    """Call ``say`` if the body takes longer than it takes to load what was compiled before."""
    timer = Timer(PATIENCE, say)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
