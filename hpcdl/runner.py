"""Run a suite's cases in the job this process is in, and leave a run folder."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import contextmanager, suppress
from threading import Timer
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import threadpoolctl

from hpcdl.fabric.mpi import Mpi, library_version
from hpcdl.launch.environment import counters, job, local
from hpcdl.launch.memory import node_memory_bytes, shortage
from hpcdl.launch.mpirun import on_terminal
from hpcdl.launch.testbed_settings import emulated
from hpcdl.nn.backend import backend
from hpcdl.nn.threads import threads
from hpcdl.suite import Suite, UsageError
from hpcdl.trace.recorder import Recorder, from_bytes, to_bytes
from hpcdl.training.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from hpcdl.fabric.mpi_comm import MpiComm
    from hpcdl.suite import Case, Scalar

OK: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 75

BAR: Final = 30
"""Characters of the progress bar."""
PATIENCE: Final = 3.0
"""Seconds of silence before a user is told what takes so long."""
CLEAR: Final = "\r\x1b[K"
"""What wipes the bar: carriage return, erase to the end of the line (ECMA-48)."""


class Job:
    """The ranks of this job, and smaller communicators for cases that want fewer."""

    def __init__(self, mpi: Mpi) -> None:
        self.mpi = mpi
        self.world = mpi.comm
        self._smaller: dict[int, MpiComm] = {self.world.size: self.world}
        self._stop = False
        signal.signal(signal.SIGUSR1, self._note_signal)
        self.clock_offset_ns = self.world.clock_offset_ns()
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

    def stopping(self) -> bool:
        """Whether any rank was told to stop: by SIGUSR1, which Slurm can send before the time limit."""
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
    line = work.world.library.bcast(None if work.ranks is None else _lack_of_memory(suite, work.ranks))
    if line is not None:
        raise UsageError(line)
    clerk = Clerk(suite, folder, work, resume=resume, say=say) if work.world.rank == 0 else None
    todo: Sequence[int] = work.world.library.bcast(clerk.todo if clerk else None)
    for number in todo:
        if work.stopping():
            if clerk:
                clerk.finish(complete=False)
            return INTERRUPTED
        case = suite.cases[number]
        work.prepare(case, clerk.tell if clerk else lambda _line: None)
        comm = work.first(case.processes)
        if clerk:
            clerk.begin(number, case)
        if comm is not None:
            traces = _run_case(case, work, comm)
            if clerk and traces is not None:
                clerk.keep(number, case, *traces)
        work.world.rest()
    failed = clerk.finish(complete=True) if clerk else False
    return FAILED if work.world.library.bcast(failed) else OK


def _lack_of_memory(suite: Suite, ranks: Sequence[dict[str, Any]]) -> str | None:
    """One line about a case whose ranks do not fit into their fullest node; the suite's check knew of one rank."""
    for case in suite.cases:
        hosts = Counter((rank["slurm_node"], rank["hostname"]) for rank in ranks[: case.processes])
        most = case.processes if emulated() else max(hosts.values())  # emulated hosts share one machine's memory
        if (line := shortage(case.module.memory_bytes(case.settings), most, node_memory_bytes())) is not None:
            return f"case {case.name!r}: {line} on a node"
    return None


def _run_case(case: Case, work: Job, comm: MpiComm) -> tuple[dict[str, Scalar], list[bytes]] | None:
    """Run one case on the ranks of ``comm``; rank 0 gets its findings and everybody's trace."""
    mpi = work.mpi
    trace = case.settings["trace"]
    recorder = Recorder(events=trace != "steps")
    recorder.clock_offset_ns = work.clock_offset_ns

    def before_step(step: int) -> None:
        if trace == "alternating":
            mpi.events = None if step % 2 else recorder.events

    # a training that diverges overflows, and the record shows it; warnings would show it p times a step
    allowed = case.settings["threads"]
    with threadpoolctl.threadpool_limits(allowed), threads(allowed), np.errstate(all="ignore"):
        program = case.module.program(case.settings, Journal(recorder, mpi.gauge, before_step))
        comm.library.Barrier()
        mpi.events = recorder.events
        try:
            found = mpi.run(program(comm))
        finally:
            mpi.events = None
    mine = [to_bytes(one.pack()) for one in recorder.virtual or [recorder]]
    packed = comm.library.gather(mine)
    return None if packed is None else (found, [trace for rank in packed for trace in rank])


@contextmanager
def _if_it_lasts(say: Callable[[], None]) -> Iterator[None]:
    """Call ``say`` if the body takes longer than it takes to load what was compiled before."""
    timer = Timer(PATIENCE, say)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Clerk:
    """Rank 0's paperwork."""

    def __init__(self, suite: Suite, folder: Path, work: Job, *, resume: bool, say: Callable[[str], None]) -> None:
        from hpcdl.trace import schema  # late: h5py is rank 0's alone

        self._schema = schema
        self._suite = suite
        self._folder = folder
        self._work = work
        self._say = say
        self._parts = folder / "parts"
        self._began = perf_counter()
        self._failed = False
        self._terminal = on_terminal()
        self._environment = job({**library_version(), "ranks": work.world.size, "nodes": work.nodes})
        self._environment["ranks"] = work.ranks
        self._parts.mkdir(parents=True, exist_ok=True)
        # by digest: the numbers of cases change with the suite, with --case and with --set
        self._there = {path.stem.rpartition("-")[2]: path for path in self._parts.glob("*.h5")} if resume else {}
        (folder / "run.h5").unlink(missing_ok=True)  # an interrupted run's: the parts will soon say more
        self._log = (folder / "log.txt").open("a", encoding="utf-8")
        self.todo = [i for i, case in enumerate(suite.cases) if not (resume and self._finished(i, case))]
        skipped = len(suite.cases) - len(self.todo)
        if skipped:
            self.tell(f"resuming: {skipped} of {len(suite.cases)} cases are there")

    def _part(self, number: int, case: Case) -> Path:
        return self._there.get(case.digest, self._parts / f"{number:04d}-{case.digest}.h5")

    def _finished(self, number: int, case: Case) -> bool:
        with suppress(self._schema.TraceError):
            found = self._schema.read(self._part(number, case))
            self._failed |= any(one.get("correct") is False for one in found.described)
            return True
        return False

    def tell(self, line: str) -> None:
        """Show a line and log it."""
        self._say(f"{CLEAR if self._terminal else ''}{line}")
        print(line, file=self._log, flush=True)

    def begin(self, number: int, case: Case) -> None:
        """Note that ``case`` starts: a bar on a terminal, a line in the log."""
        self._began = perf_counter()
        print(f"{case.name} ...", file=self._log, flush=True)
        if self._terminal:
            total = len(self._suite.cases)
            done = BAR * number // total
            print(f"{CLEAR}[{'#' * done:.<{BAR}}] {number}/{total} {case.name}", end="", flush=True)

    def keep(self, number: int, case: Case, found: dict[str, Scalar], packed: list[bytes]) -> None:
        """Write a finished case."""
        fields = {**case.fields(), "nodes": min(self._work.nodes, case.processes), **found}
        record = self._schema.CaseRecord(fields, [from_bytes(data) for data in packed])
        self._schema.write_part(
            self._part(number, case), record, environment=self._environment, suite_text=self._suite.text
        )
        wrong = fields.get("correct") is False
        self._failed |= wrong
        place = f"[{number + 1}/{len(self._suite.cases)}]"
        seconds = perf_counter() - self._began
        self.tell(f"{place} {case.name}: {seconds:.1f} s{'  WRONG RESULT' if wrong else ''}")

    def finish(self, *, complete: bool) -> bool:
        """Merge what there is and write the report; tells whether a check failed."""
        from hpcdl.report.render import render

        self._environment["counters_after"] = counters()
        parts = [self._part(i, case) for i, case in enumerate(self._suite.cases)]
        there = [part for part in parts if part.exists()]
        if not complete:
            self.tell(f"interrupted after {len(there)} of {len(parts)} cases; go on with --resume")
        if there:
            self._schema.merge(
                there, self._folder / "run.h5", self._environment, self._suite.text, complete=complete
            )
            runs = [self._schema.read(self._folder)]
            (self._folder / "report.md").write_text(render(runs, "markdown"), encoding="utf-8")
            self._say(render(runs, "summary"))
            self._say(f"report: {self._folder / 'report.md'}")
        self._log.close()
        return self._failed
