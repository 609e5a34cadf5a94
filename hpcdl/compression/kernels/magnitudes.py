"""Kernels that search and sample magnitudes; see :mod:`hpcdl.compression.parts.magnitudes`."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

BLOCK: Final = 64
"""Entries of which only the largest is looked at first."""


@njit(nogil=True, cache=True)
def collect(seen: Any, threshold: Any, found: Any) -> Any:
    """Write positions to ``found`` as long as a block fits; return the number of all and the largest magnitude."""
    mask = ~(seen.dtype.type(1) << seen.dtype.type(8 * seen.itemsize - 1))
    count, highest = 0, seen.dtype.type(0)
    for begin in range(0, len(seen), BLOCK):
        block = seen[begin : begin + BLOCK]
        most = seen.dtype.type(0)
        for i in range(len(block)):
            most = max(most, block[i] & mask)
        if most < threshold:
            continue
        highest = max(highest, most)
        if count + BLOCK <= len(found):
            for i in range(len(block)):
                found[count] = begin + i
                count += block[i] & mask >= threshold
        else:
            for i in range(len(block)):
                count += block[i] & mask >= threshold
    return count, highest


@njit(nogil=True, cache=True)
def sample(seen: Any, found: Any, seed: Any) -> None:
    """Fill ``found`` with magnitudes, one from each of equal pieces of ``seen``."""
    mask = ~(seen.dtype.type(1) << seen.dtype.type(8 * seen.itemsize - 1))
    state = seed
    for i in range(len(found)):
        begin, end = i * len(seen) // len(found), (i + 1) * len(seen) // len(found)
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)  # Knuth's MMIX
        found[i] = seen[begin + np.int64((state >> np.uint64(33)) % np.uint64(end - begin))] & mask


@njit(nogil=True, cache=True)
def highest(seen: Any) -> Any:
    """Return the largest magnitude."""
    mask = ~(seen.dtype.type(1) << seen.dtype.type(8 * seen.itemsize - 1))
    most = seen.dtype.type(0)
    for i in range(len(seen)):
        most = max(most, seen[i] & mask)
    return most
