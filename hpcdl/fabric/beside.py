"""Work on a second thread while the first one moves messages."""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcdl.fabric.patience import Patience

T = TypeVar("T")

WORTHWHILE_NS: Final = 300_000
"""Work shorter than this stays on the caller's thread: to hand it over and back takes a tenth of that."""


class Job(Generic[T]):
    """A piece of work: given, and some time later done."""

    __slots__ = ("_error", "_result", "_work", "begin", "done", "end")

    def __init__(self, work: Callable[[], T]) -> None:
        # in the caller's context: numpy's error settings belong to it
        self._work: Callable[[], T] = partial(copy_context().run, work)
        self._result: T
        self._error: BaseException | None = None
        self.done = False
        self.begin = self.end = 0
        """ns of the clock, when it was done."""

    def run(self) -> None:
        """Do it; what comes of it waits for :meth:`result`."""
        self.begin = perf_counter_ns()
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again on the caller's thread
            self._error = error
        del self._work  # arrays must not live on in a job that the worker remembers
        self.end = perf_counter_ns()
        self.done = True

    def result(self) -> T:
        """Hand over what the work returned, or raise what it raised, once it is done; once only."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        result = self._result
        del self._result
        return result


class Worker:
    """A thread that does one job after the other; it is started when first needed and never stopped.

    One, for two would share the core: asynchronous training of LeNet had a twentieth less throughput with two.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._given: SimpleQueue[Job[Any]] = SimpleQueue()
        self._ended = Event()
        self._last: Job[Any] | None = None

    def give(self, work: Callable[[], T]) -> Job[T]:
        """Begin ``work``, after what was given before."""
        if self._last is None:
            Thread(target=self._serve, name="hpcdl-compute", daemon=True).start()
        job = self._last = Job(work)
        self._patience.moved()
        self._given.put(job)
        return job

    @property
    def busy(self) -> bool:
        """Whether a job is not done."""
        return self._last is not None and not self._last.done

    def wait(self, *, moved: bool = False) -> None:
        """Wait until a job ends, or it is time to look what has come; ``moved``: the last look found something.

        A look takes the interpreter from the work for some microseconds, so that the next comes the later the
        longer nothing has.
        """
        if moved:
            self._patience.moved()
        if self._ended.wait(self._patience.pause()):
            self._ended.clear()

    def _serve(self) -> None:
        while True:
            self._given.get().run()
            self._ended.set()
