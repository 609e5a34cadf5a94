"""Positions of entries as gaps and bitmaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Bytes, Sparse
    from hpcdl.fabric.comm import Array


def gaps(indices: Array) -> Array:
    """Return the zeros before each of rising positions, uint32: of 0, 1, 5 they are 0, 0, 3."""
    ahead = indices.astype(np.uint32)
    ahead[1:] -= ahead[:-1].copy() + np.uint32(1)
    return ahead


def add(found: Sparse, into: Array) -> None:
    """Add the entries to the vector ``into``."""
    _add(found.indices, found.values, into)


def bitmap_of(indices: Array, length: int) -> Bytes:
    """Return one bit per position of a vector of ``length``, the first lowest; set at ``indices``."""
    marks = np.zeros((length + 7) // 8, np.uint8)
    _mark(indices, marks)
    return marks


def unpacked(bits: Bytes, count: int) -> Array:
    """Return ``count`` bits, bool. Raises ValueError if a bit behind them is set."""
    found = np.unpackbits(bits, bitorder="little").view(bool)
    if found[count:].any():
        raise ValueError(f"a bit is set behind {count}")
    return found[:count]


def rising(ahead: Array, length: int, indices: Array) -> bool:
    """Fill ``indices``, int32, from gaps, uint32; return False if a position is not below ``length``."""
    return bool(_rising(ahead, length, indices))


@njit(nogil=True, cache=True)
def _add(indices: Any, values: Any, into: Any) -> None:
    for i in range(len(indices)):
        into[indices[i]] += values[i]


@njit(nogil=True, cache=True)
def _mark(indices: Any, marks: Any) -> None:
    for i in range(len(indices)):
        marks[indices[i] >> 3] |= np.uint8(1 << (indices[i] & 7))


@njit(nogil=True, cache=True)
def _rising(ahead: Any, length: Any, indices: Any) -> Any:
    position = np.int64(-1)
    for i in range(len(ahead)):
        position += 1 + np.int64(ahead[i])
        if position >= length:
            return False
        indices[i] = position
    return True
