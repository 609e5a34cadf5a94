"""Number of threads that a rank's kernels may use, and parallel loops over them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

T = TypeVar("T")

MIN_ELEMENTS_PER_THREAD: Final = 1 << 20
"""Waking a thread takes about as long as adding so many elements, while compiled kernels' own threads spin."""
_LIMIT: Final = [1]
_POOL: Final = ThreadPoolExecutor(1 << 10, "hpcdl-kernels")  # starts threads when they are needed


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Context manager: kernels of this process may use ``count`` >= 1 threads in the body."""
    before, _LIMIT[0] = _LIMIT[0], count
    try:
        yield
    finally:
        _LIMIT[0] = before


def limit() -> int:
    """Return the number of threads that this process's kernels may use."""
    return _LIMIT[0]


def parallel_ranges(count: int, work: Callable[[int, int], T], *, elements: int) -> list[T]:
    """Call work(begin, end) for contiguous parts of range(count), one per thread; return the results in order.

    ``elements`` is the total number of elements that the work reads; small work uses fewer threads. ``work``
    should release the GIL. The calling thread runs the first part.
    """
    parts = max(min(_LIMIT[0], count, elements // MIN_ELEMENTS_PER_THREAD), 1)
    if parts == 1:
        return [work(0, count)]
    bounds = [i * count // parts for i in range(parts + 1)]
    others = [_POOL.submit(work, bounds[i], bounds[i + 1]) for i in range(1, parts)]
    return [work(0, bounds[1]), *(other.result() for other in others)]
