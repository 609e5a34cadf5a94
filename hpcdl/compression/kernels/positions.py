"""Kernels on positions of entries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


def take(vector: Any, indices: Any) -> Any:
    """Return the entries at ``indices``."""
    return vector[indices]


def put(indices: Any, values: Any, into: Any) -> None:
    """Write ``values`` at ``indices``."""
    into[indices] = values


@njit(nogil=True, cache=True)
def add(indices: Any, values: Any, into: Any) -> None:
    """Add ``values`` at ``indices``."""
    for i in range(len(indices)):
        into[indices[i]] += values[i]


@njit(nogil=True, cache=True)
def mark(indices: Any, marks: Any) -> None:
    """Set the bits of ``indices``."""
    for i in range(len(indices)):
        marks[indices[i] >> 3] |= np.uint8(1 << (indices[i] & 7))


@njit(nogil=True, cache=True)
def rising(ahead: Any, length: Any, indices: Any) -> Any:
    """Fill ``indices`` from gaps; return False if one is not below ``length``."""
    position = np.int64(-1)
    for i in range(len(ahead)):
        position += 1 + np.int64(ahead[i])
        if position >= length:
            return False
        indices[i] = position
    return True
