"""Prefetch batches in a thread, overlapped with computation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Items make(0) ... make(stop - 1), of which ``depth`` are made ahead of the last one taken.

    One thread makes all items in order, so ``make`` needs no locks and the items do not depend on timing. File
    reads and numpy loops release the GIL. With ``depth`` 0 there is no thread; each item is made when taken.
    """

    def __init__(self, make: Callable[[int], T], stop: int, depth: int) -> None:
        self._make = make
        self._stop = stop
        self._depth = depth
        self._ahead: dict[int, Future[T]] = {}
        # starts its thread with the first item
        self._thread = ThreadPoolExecutor(1, "prefetch") if depth else None

    def take(self, number: int) -> T:
        """Return item ``number`` and start the following ones; numbers may skip.

        Raises the exception of ``make`` for this item. Must not be called after :meth:`close`.
        """
        if self._thread is None:
            return self._make(number)
        numbers = range(number, max(number, min(number + self._depth, self._stop - 1)) + 1)
        for other in self._ahead.keys() - set(numbers):
            self._ahead.pop(other).cancel()
        for following in numbers:
            if following not in self._ahead:
                self._ahead[following] = self._thread.submit(self._make, following)
        return self._ahead.pop(number).result()

    def close(self) -> None:
        """Drop the prefetched items and end the thread after its current item."""
        self._ahead.clear()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
