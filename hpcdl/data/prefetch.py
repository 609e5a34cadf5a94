"""Prefetch: a thread makes the next batches while the present one is computed with."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Items 0 .. ``stop`` - 1 of what ``make`` makes, ``depth`` of them ahead of the one that was taken last.

    One thread makes them all, one after another, so ``make`` needs no locks, and the items are the same
    whether they were made ahead or not. Reading a file and numpy's loops over arrays let the caller run
    meanwhile. With a ``depth`` of 0 there is no thread: each item is made by whoever takes it.
    """

    def __init__(self, make: Callable[[int], T], stop: int, depth: int) -> None:
        self._make = make
        self._stop = stop
        self._depth = depth
        self._ahead: dict[int, Future[T]] = {}
        # it starts its thread with the first item
        self._thread = ThreadPoolExecutor(1, "prefetch") if depth else None

    def take(self, number: int) -> T:
        """Item ``number``, the caller's own; those that follow it are begun. Numbers need not follow each other.

        Raises what ``make`` raised for this item. Must not be called after :meth:`close`.
        """
        if self._thread is None:
            return self._make(number)
        wanted = range(number, max(number, min(number + self._depth, self._stop - 1)) + 1)
        for other in self._ahead.keys() - set(wanted):
            self._ahead.pop(other).cancel()
        for following in wanted:
            if following not in self._ahead:
                self._ahead[following] = self._thread.submit(self._make, following)
        return self._ahead.pop(number).result()

    def close(self) -> None:
        """Drop what was made ahead and end the thread, when it is done with the item it is at."""
        self._ahead.clear()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
