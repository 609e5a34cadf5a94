"""Work on a second thread while the first one moves messages."""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcdl.fabric.patience import Patience

T = TypeVar("T")

WORTHWHILE_NS: Final = 300_000
"""Work shorter than this stays on the caller's thread: to hand it over and back takes a tenth of that."""


class Worker:
    """A thread that does one piece of work at a time; it is started when first needed and never stopped."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._turn = Lock()
        self._given, self._finished = Event(), Event()
        self._work: Callable[[], Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread: Thread | None = None

    def run(self, work: Callable[[], T], meanwhile: Callable[[], bool]) -> T:
        """Return what ``work`` returns, or raise what it raises; call ``meanwhile`` again and again until then.

        ``meanwhile`` tells whether something has moved. A look takes the interpreter from the work for some
        microseconds, so that the next comes the later the longer nothing has.
        Work given from within ``meanwhile``, while there is some already, is done at once.
        """
        if not self._turn.acquire(blocking=False):
            return work()
        try:
            if self._thread is None:
                self._thread = Thread(target=self._serve, name="hpcdl-compute", daemon=True)
                self._thread.start()
            # in the caller's context: numpy's error settings belong to it
            self._work, self._result, self._error = partial(copy_context().run, work), None, None
            self._finished.clear()
            self._patience.moved()
            self._given.set()
            while not self._finished.wait(self._patience.pause()):
                if meanwhile():
                    self._patience.moved()
            result, error = self._result, self._error
            self._work = self._result = self._error = None  # arrays must not live on here
        finally:
            self._turn.release()
        if error is not None:
            raise error
        return cast("T", result)

    def _serve(self) -> None:
        while True:
            self._given.wait()
            self._given.clear()
            try:
                self._result = self._work() if self._work else None
            except BaseException as error:  # noqa: BLE001 - raised again on the caller's thread
                self._error = error
            self._finished.set()
