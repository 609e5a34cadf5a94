"""Number of threads that a rank's kernels may use, and parallel loops over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

T = TypeVar("T")

MIN_ELEMENTS_PER_THREAD: Final = 1 << 15
"""Waking a thread takes about as long as adding so many elements."""


class _Workers:
    """Thread pool, created on first use and enlarged when the limit grows."""

    def __init__(self) -> None:
        self.limit = 1
        self._pool: ThreadPoolExecutor | None = None
        self._size = 0

    def pool(self) -> ThreadPoolExecutor:
        if self._pool is None or self._size < self.limit - 1:
            if self._pool is not None:
                self._pool.shutdown()
            self._size = self.limit - 1
            self._pool = ThreadPoolExecutor(self._size, "hpcdl-kernels")
        return self._pool


_WORKERS: Final = _Workers()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Context manager: kernels of this process may use ``count`` >= 1 threads in the body."""
    before, _WORKERS.limit = _WORKERS.limit, count
    try:
        yield
    finally:
        _WORKERS.limit = before


def limit() -> int:
    """Return the number of threads that this process's kernels may use."""
    return _WORKERS.limit


def parallel_ranges(count: int, work: Callable[[int, int], T], *, elements: int) -> list[T]:
    """Call work(begin, end) for contiguous parts of range(count), one per thread; return the results in order.

    ``elements`` is the total number of elements that the work reads; small work uses fewer threads. ``work``
    should release the GIL. The calling thread runs the first part.
    """
    parts = max(min(_WORKERS.limit, count, elements // MIN_ELEMENTS_PER_THREAD), 1)
    if parts == 1:
        return [work(0, count)]
    bounds = [i * count // parts for i in range(parts + 1)]
    others = [_WORKERS.pool().submit(work, bounds[i], bounds[i + 1]) for i in range(1, parts)]
    return [work(0, bounds[1]), *(other.result() for other in others)]
