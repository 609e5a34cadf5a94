"""Pool of memory for activations and gradients; memory is reused once no array refers to it."""

import math
from bisect import bisect_left, insort
from collections import deque
from threading import Lock
from typing import Final, Generic, TypeVar

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import Shape

Geometry = TypeVar("Geometry")
ALIGNMENT: Final = 64
"""Bytes: a cache line, and the widest vector register."""
_MAX_WASTE: Final = 1.25
"""Largest ratio of a reused block's size to the requested size."""
_MAX_IDLE: Final = 2
"""Largest ratio of idle bytes to the most bytes in use at a time."""


class _Allocation:
    """A block in use; numpy keeps this object alive as the base of all arrays on it."""

    __slots__ = ("__array_interface__", "_block", "_pool")

    def __init__(self, pool: "_Pool", block: Array, shape: Shape, dtype: np.dtype[np.generic]) -> None:
        self._pool = pool
        self._block = block
        address = block.ctypes.data
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (address + -address % ALIGNMENT, False),
        }

    def __del__(self) -> None:
        self._pool.returned.append(self._block)


class _Pool:
    """Idle blocks by size; an allocation takes the smallest that fits.

    Garbage collection may free an allocation at any point, also within these methods. So it only appends its block
    to ``returned``, and the next call sorts it in.
    """

    def __init__(self) -> None:
        self.returned: deque[Array] = deque()
        self._lock = Lock()
        self._free: list[tuple[int, int, Array]] = []
        self._idle = 0
        self._in_use = 0
        self._most = 0

    def take(self, size: int) -> Array:
        with self._lock:
            self._sort_in()
            # (size,) is less than any (size, id, block), so that this is the smallest block that fits
            i = bisect_left(self._free, (size,))
            fits = i < len(self._free)
            if fits and self._free[i][0] <= max(_MAX_WASTE * size, size + 4096):
                block = self._free.pop(i)[2]
                self._idle -= block.size
            else:
                # Idle blocks are freed if all are too small and exceed those in use (another network's blocks), or
                # if they exceed the peak by far (batches of several sizes). A step's memory is idle between steps.
                if self._idle > (_MAX_IDLE * self._most if fits else self._in_use):
                    self._free.clear()
                    self._idle = 0
                    self._most = self._in_use
                block = np.empty(size, np.uint8)
            self._in_use += block.size
            self._most = max(self._most, self._in_use)
            return block

    def in_use(self) -> int:
        """Return the bytes in use at present."""
        with self._lock:
            self._sort_in()
            return self._in_use

    def _sort_in(self) -> None:
        while self.returned:
            block = self.returned.popleft()
            self._in_use -= block.size
            self._idle += block.size
            insort(self._free, (block.size, id(block), block))


_POOL: Final = _Pool()


def allocate(shape: Shape, dtype: str | np.dtype[np.generic]) -> Array:
    """Return an uninitialised array, aligned to a cache line.

    Its memory returns to the pool when the last array on it is gone; new memory would cost a page fault every 4
    KiB.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size == 0:
        return np.empty(shape, kind)
    return np.asarray(_Allocation(_POOL, _POOL.take(size + ALIGNMENT), shape, kind))


class Op(Generic[Geometry]):
    """Base of ops: their geometry, and the arrays that forward keeps for backward."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._saved: tuple[Array, ...] = ()
