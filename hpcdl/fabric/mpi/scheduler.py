"""Run the programs of one rank in turns: progress, errors, and local work on a second thread."""

import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Any, Final, Generic, TypeVar

from mpi4py import MPI

from hpcdl.fabric.comm import Counters, Event
from hpcdl.fabric.device.staged_copy import Wait
from hpcdl.fabric.device.transport import Transport
from hpcdl.fabric.mpi.backoff import Backoff
from hpcdl.fabric.shared_memory import SharedMemory
from hpcdl.fabric.task import AnyTask, Program, Task
from hpcdl.fabric.vectors import BufferPool

T = TypeVar("T")

WORTHWHILE_NS: Final = 300_000
"""Shorter work stays on the caller's thread: two hand-overs take a tenth of this."""


class Job(Generic[T]):
    """A piece of work and its result."""

    __slots__ = ("_error", "_result", "_work", "begin", "done", "end")

    def __init__(self, work: Callable[[], T]) -> None:
        # in the caller's context: numpy's error settings belong to it
        self._work: Callable[[], T] = partial(copy_context().run, work)
        self._result: T
        self._error: BaseException | None = None
        self.done = False
        self.begin = self.end = 0
        """Times at which the work began and ended, in ns of the clock."""

    def run(self) -> None:
        """Do the work and keep its result or error for :meth:`result`."""
        self.begin = perf_counter_ns()
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again on the caller's thread
            self._error = error
        del self._work  # arrays must not live on in a job that the worker remembers
        self.end = perf_counter_ns()
        self.done = True

    def result(self) -> T:
        """Return the result of completed work or raise its error; to be called once."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        result = self._result
        del self._result
        return result


class Worker:
    """A thread that does one job after another; it is started when first needed and never stopped.

    One thread, because two share a core: asynchronous training of LeNet had 5 % less throughput with two.
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._given: SimpleQueue[Job[Any]] = SimpleQueue()
        self._ended = threading.Event()
        self._last: Job[Any] | None = None

    def give(self, work: Callable[[], T]) -> Job[T]:
        """Queue ``work``."""
        if self._last is None:
            threading.Thread(target=self._serve, name="hpcdl-compute", daemon=True).start()
        job = self._last = Job(work)
        self._backoff.reset()
        self._given.put(job)
        return job

    @property
    def busy(self) -> bool:
        """True while a job is queued or running."""
        return self._last is not None and not self._last.done

    def wait(self, *, moved: bool = False) -> None:
        """Wait until a job ends or the next poll is due; ``moved``: the last poll found a completed operation.

        A poll takes the interpreter lock from the work for some microseconds, so pauses grow while no operation
        completes.
        """
        if moved:
            self._backoff.reset()
        if self._ended.wait(self._backoff.pause()):
            self._ended.clear()

    def _serve(self) -> None:
        while True:
            self._given.get().run()
            self._ended.set()


class Scheduler:
    """Programs of this rank, their counters and their shared resources.

    ``messages`` and ``bytes`` count what this rank has sent, without native collectives; ``compute_ns`` is the
    time in :meth:`hpcdl.fabric.comm.Comm.compute`, ``input_ns`` the part of it in work labelled "input". While
    ``events`` is a list, every operation is appended to it.
    """

    def __init__(self, ranks_per_core: float) -> None:
        self.messages = 0
        self.bytes = 0
        self.compute_ns = 0
        self.input_ns = 0
        self.events: list[Event] | None = None
        self.scratch = BufferPool()
        self.memory = SharedMemory()
        self.shared_pool = BufferPool(lambda size, like: self.memory.allocate(size, like.dtype))
        self.backoff = Backoff(ranks_per_core)
        self.worker = Worker(Backoff(ranks_per_core, at_work=True))
        self.at_end: set[Callable[[], None]] = set()
        """Functions that free the persistent requests of the running program."""
        self.lasted: dict[str, int] = {}
        """Duration of the last work of each label, in ns."""
        self.transport: Transport | None = None
        """For arrays that are not numpy's; chosen when the first one is sent."""
        self.running: AnyTask = None  # type: ignore[assignment]
        self.alone = True
        """True while no started program is in flight and none has failed."""
        self.may_block = not self.backoff.oversubscribed
        """True if the library may block: one program is in flight, and the rank has its own core."""
        self._in_flight = 0
        self._launched = 0
        self._main: AnyTask | None = None
        self._ready: deque[AnyTask] = deque()
        self._waiting: list[tuple[AnyTask, Wait]] = []
        self._failed: list[AnyTask] = []

    def counters(self) -> Counters:
        """Return the clock and the counts."""
        return Counters(perf_counter_ns(), self.messages, self.bytes, self.compute_ns, self.input_ns)

    def run(self, program: Program[T]) -> T:
        """Run this rank's main program, and all programs that it starts, to their ends.

        Raises the error of the main program or of a started program that no program has joined; at once, because
        other programs may wait for the failed one.
        """
        main = self._main = Task(program)
        self._launched = 0
        self._failed.clear()
        self._update_alone()
        try:
            self._resume(main)
            self.raise_failures()
            while not main.done or self._in_flight:
                moved = self.progress()
                self.raise_failures()
                if moved:
                    self.backoff.reset()
                if self.worker.busy:
                    self.worker.wait(moved=moved)
                elif not moved:
                    self.backoff.wait()
        finally:
            # A main program that failed leaves requests open: the library must not block for later ones.
            self._in_flight += not main.done
            self.memory.release()
            while self.at_end:
                self.at_end.pop()()
        return main.result  # type: ignore[return-value]

    def raise_failures(self) -> None:
        """Raise the first error of a program that no program has joined.

        Operations that block in the library call it first, because the library does not return to :meth:`run`.
        """
        for task in self._failed:
            if task.error is not None and not task.joined:
                raise task.error

    def programs(self) -> list[AnyTask]:
        """Return the main program and those that wait, for :mod:`hpcdl.run.watchdog`; any thread may call."""
        main = [] if self._main is None else [self._main]
        return main + [task for task, _ in self._waiting]

    def launch(self, task: Task[T]) -> Task[T]:
        """Start a program concurrent with the running one; it runs to its first wait at once."""
        starter = self.running
        self._launched += 1
        task.number = self._launched
        self._in_flight += 1
        self.alone = self.may_block = False
        self._resume(task)
        self.running = starter
        return task

    def progress(self) -> bool:
        """Resume every program whose operation has completed; return whether there was one."""
        running = self.running
        moved = bool(self._ready)
        while self._ready:
            self._resume(self._ready.popleft())
        # A new list, because a program that is resumed may wait again, or start others that wait.
        waiting, self._waiting = self._waiting, []
        for task, completed in waiting:
            try:
                over = completed()
            except MPI.Exception as error:
                moved = True
                self._resume(task, error)
                continue
            if over:
                moved = True
                self._resume(task)
            else:
                self._waiting.append((task, completed))
        self.running = running
        return moved

    def _resume(self, task: AnyTask, failure: MPI.Exception | None = None) -> None:
        """Run ``task`` to its next wait; ``failure`` is the library's error of the last one."""
        self.running = task
        try:
            asked = task.coroutine.send(None) if failure is None else task.coroutine.throw(failure)
        except StopIteration as stop:
            task.result = stop.value
        except Exception as error:  # noqa: BLE001 - raised where the task is awaited, or by run()
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
            self._update_alone()

    def _update_alone(self) -> None:
        self.alone = not (self._in_flight or self._failed)
        self.may_block = self.alone and not self.backoff.oversubscribed
