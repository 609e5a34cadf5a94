"""Work on a second thread while the first one moves messages."""

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from time import perf_counter_ns
from typing import Any, Final, Generic, TypeVar

from hpcdl.fabric.mpi.backoff import Backoff

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
        self._ended = Event()
        self._last: Job[Any] | None = None

    def give(self, work: Callable[[], T]) -> Job[T]:
        """Queue ``work``."""
        if self._last is None:
            Thread(target=self._serve, name="hpcdl-compute", daemon=True).start()
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
