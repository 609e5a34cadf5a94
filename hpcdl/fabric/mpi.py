"""The real thing: mpi4py, any array that numpy or cupy gives.

While a rank has one program and a core it calls the library's blocking operations, which is as fast as the library
is. While started programs are in flight every operation is a non-blocking request and the programs take turns; so
it is where ranks outnumber cores, for a library that blocks spins, and takes the core from who could end it. Work
given to :meth:`MpiComm.compute` then runs on a second thread, where numpy, BLAS and compiled kernels let go of the
interpreter, and messages move during it, unless it was short when last done: then a look follows.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

from mpi4py import MPI

from hpcdl.fabric.arrivals import Arrivals, event_queues
from hpcdl.fabric.beside import Worker
from hpcdl.fabric.comm import Event, Gauge
from hpcdl.fabric.mpi_comm import MpiComm
from hpcdl.fabric.patience import Patience, here
from hpcdl.fabric.scratch import Scratch
from hpcdl.fabric.shared_memory import SharedMemory
from hpcdl.fabric.task import Task

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from hpcdl.fabric.pipeline import Wait
    from hpcdl.fabric.transport import Transport

T = TypeVar("T")


def library_version() -> dict[str, str]:
    """Name and version of the MPI library, for the record."""
    name, version = MPI.get_vendor()
    return {
        "library": name,
        "version": ".".join(map(str, version)),
        "text": MPI.Get_library_version().strip("\0 \n").partition("\n")[0],
    }


class Mpi:
    """This process's place in an MPI job.

    ``messages`` and ``bytes`` count what this rank has sent, native collectives apart; ``compute_ns`` is the
    time in :meth:`MpiComm.compute`, ``input_ns`` the part of it in work labelled "input". While ``events`` is a
    list, every operation is appended to it.
    """

    def __init__(self, communicator: MPI.Intracomm = MPI.COMM_WORLD) -> None:
        self.messages = 0
        self.bytes = 0
        self.compute_ns = 0
        self.input_ns = 0
        self.events: list[Event] | None = None
        self.scratch = Scratch()
        self.memory = SharedMemory()
        self.lent = Scratch(lambda size, like: self.memory.allocate(size, like.dtype))
        self._arrivals = Arrivals(event_queues())
        ranks_per_core = self._ranks_per_core(communicator)
        self.patience = Patience(ranks_per_core, listen=self._arrivals.sleep)
        self.worker = Worker(Patience(ranks_per_core, at_work=True))
        self.lasted: dict[str, int] = {}
        """How long the work of each label took the last time, in ns."""
        self.transport: Transport | None = None
        """For arrays that are not numpy's; chosen when the first one is met."""
        self.running: Task[Any] = None  # type: ignore[assignment]
        self.alone = True
        """Whether no started program is in flight."""
        self.may_block = not self.patience.crowded
        """Whether the library may block: the program is alone and the core is its own."""
        self.comm = MpiComm(self, communicator.Dup(), 0)
        self._in_flight = 0
        self._launched = 0
        self._main: Task[Any] | None = None
        self._ready: deque[Task[Any]] = deque()
        self._waiting: list[tuple[Task[Any], Wait]] = []
        self._failed: list[Task[Any]] = []

    def awake(self, comm: MpiComm) -> None:
        """From now on only the ranks of ``comm`` want cores, the others sleep. Each of those must call."""
        self.patience = Patience(self._ranks_per_core(comm.library), listen=self._arrivals.sleep)
        self.may_block = self.alone and not self.patience.crowded

    @staticmethod
    def _ranks_per_core(communicator: MPI.Intracomm) -> float:
        mine = here()
        return mine.ranks_per_core(communicator.allgather(mine))

    def abort(self, code: int) -> None:
        """End the whole job."""
        MPI.COMM_WORLD.Abort(code)

    def gauge(self) -> Gauge:
        """The clock and the counts."""
        return Gauge(perf_counter_ns(), self.messages, self.bytes, self.compute_ns, self.input_ns)

    def run(self, program: Coroutine[Any, Any, T]) -> T:
        """Run this rank's program to its end, and all that it started.

        Raises what the program raised, at once, for what is in flight may wait for it for ever; or what one
        raised that it started and did not join.
        """
        main = self._main = Task(program)
        self._launched = 0
        self._resume(main)
        while not main.done or (self._in_flight and main.error is None):
            moved = self.progress()
            if moved:
                self.patience.moved()
            if self.worker.busy:
                self.worker.wait(moved=moved)
            elif not moved:
                self.patience.wait()
        self.memory.let_go()
        failed, self._failed = self._failed, []
        for task in failed:
            if task.error is not None and not task.joined:
                raise task.error
        return main.result  # type: ignore[return-value]

    def launch(self, task: Task[T]) -> Task[T]:
        """Start a program beside the running one; it runs to its first wait at once."""
        starter = self.running
        self._launched += 1
        task.number = self._launched
        self._in_flight += 1
        self.alone = self.may_block = False
        self._resume(task)
        self.running = starter
        return task

    def progress(self) -> bool:
        """Let every program go on that no longer has to wait; tells whether there was one."""
        running = self.running
        moved = bool(self._ready)
        while self._ready:
            self._resume(self._ready.popleft())
        waiting, self._waiting = self._waiting, []
        for task, may_go_on in waiting:
            try:
                over = may_go_on()
            except MPI.Exception as error:
                moved = True
                self._resume(task, error)
                continue
            if over:
                moved = True
                self._resume(task)
            else:
                self._waiting.append((task, may_go_on))
        self.running = running
        return moved

    def _resume(self, task: Task[Any], failure: MPI.Exception | None = None) -> None:
        """Let ``task`` run to its next wait; ``failure`` is what the library said of the last one."""
        self.running = task
        try:
            asked = task.coroutine.send(None) if failure is None else task.coroutine.throw(failure)
        except StopIteration as stop:
            task.result = stop.value
        except Exception as error:  # noqa: BLE001 - handed to whoever joins, or raised by run()
            task.error = error
            self._failed.append(task)
        else:
            if isinstance(asked, Task):
                asked.waiters += (task,)
            else:
                self._waiting.append((task, asked))
            return
        task.done = True
        self._ready.extend(task.waiters)
        if task is not self._main:
            self._in_flight -= 1
            self.alone = self._in_flight == 0
            self.may_block = self.alone and not self.patience.crowded
