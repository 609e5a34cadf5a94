"""How many threads a rank's kernels may use, and how work is divided among them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

WORTHWHILE: Final = 1 << 15
"""Numbers that a part must have: to wake a thread takes about as long as to add up so many."""


class _Crew:
    """Threads that wait for work; made when first needed, more when more are allowed."""

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


_CREW: Final = _Crew()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let kernels of this process use ``count`` >= 1 threads within the body."""
    before, _CREW.limit = _CREW.limit, count
    try:
        yield
    finally:
        _CREW.limit = before


def in_parts(count: int, work: Callable[[int, int], T], *, numbers: int) -> list[T]:
    """Return what work(begin, end) returns for contiguous parts of 0 .. count, in their order.

    One part per thread, and not more than there is work for: ``numbers`` is how many elements all of it reads.
    ``work`` should let go of the interpreter's lock; the caller's thread does the first part.
    """
    parts = max(min(_CREW.limit, count, numbers // WORTHWHILE), 1)
    if parts == 1:
        return [work(0, count)]
    bounds = [i * count // parts for i in range(parts + 1)]
    others = [_CREW.pool().submit(work, bounds[i], bounds[i + 1]) for i in range(1, parts)]
    return [work(0, bounds[1]), *(other.result() for other in others)]
