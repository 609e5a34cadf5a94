"""Memory for activations and gradients, used again as soon as nobody holds an array on it."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Shape

ALIGNMENT: Final = 64
"""Bytes: a cache line, and the widest vector register."""

_MOST_WASTE: Final = 1.25
"""A piece may be so many times larger than what is asked for."""

_MOST_IDLE: Final = 2
"""Pieces that nobody uses may have so many times the bytes that were in use at a time."""


class _Loan:
    """One piece of memory while arrays on it exist; numpy keeps this object alive as their base."""

    __slots__ = ("__array_interface__", "_pool", "_slab")

    def __init__(self, pool: _Pool, slab: Array, shape: Shape, dtype: np.dtype[Any]) -> None:
        self._pool = pool
        self._slab = slab
        address = slab.ctypes.data
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (address + -address % ALIGNMENT, False),
        }

    def __del__(self) -> None:
        self._pool.returned.append(self._slab)


class _Pool:
    """Pieces of memory that nobody uses, by size; the smallest that fits is taken.

    A loan may end at any moment, also within these methods, when garbage is collected. So it only leaves its
    piece in ``returned``, which is safe everywhere, and the next to come sorts it in.
    """

    def __init__(self) -> None:
        self.returned: deque[Array] = deque()
        self._lock = Lock()
        self._free: list[tuple[int, int, Array]] = []
        self._idle = 0
        self._lent = 0
        self._most = 0

    def take(self, size: int) -> Array:
        with self._lock:
            self._sort_in()
            i = bisect_left(self._free, (size,))
            fits = i < len(self._free)
            if fits and self._free[i][0] <= max(_MOST_WASTE * size, size + 4096):
                slab = self._free.pop(i)[2]
                self._idle -= slab.size
            else:
                # Pieces go back to the system if all are too small and more idle than in use, another network's;
                # or if more are idle than batches of several sizes excuse. Not sooner: a step's memory is idle
                # before the step, and while a test set's smaller last batch asks for its own.
                if self._idle > (_MOST_IDLE * self._most if fits else self._lent):
                    self._free.clear()
                    self._idle = 0
                    self._most = self._lent
                slab = np.empty(size, np.uint8)
            self._lent += slab.size
            self._most = max(self._most, self._lent)
            return slab

    def lent(self) -> int:
        with self._lock:
            self._sort_in()
            return self._lent

    def _sort_in(self) -> None:
        while self.returned:
            slab = self.returned.popleft()
            self._lent -= slab.size
            self._idle += slab.size
            insort(self._free, (slab.size, id(slab), slab))


_POOL: Final = _Pool()


def lend(shape: Shape, dtype: str | np.dtype[Any]) -> Array:
    """Return an array of undefined content, aligned to a cache line.

    Its memory is lent again when the last array on it, views included, is gone. Fresh memory costs a page
    fault every 4 KiB, often more than the arithmetic done in it.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size == 0:
        return np.empty(shape, kind)
    return np.asarray(_Loan(_POOL, _POOL.take(size + ALIGNMENT), shape, kind))


def in_use() -> int:
    """Return the bytes lent at present."""
    return _POOL.lent()
