"""Random levels of a vector's buckets, and one norm per bucket.

The symbol of an entry is 0 for level 0, else 2 x level - 1, one more if it is negative.
"""

from typing import Final

import numpy as np

from hpcdl.compiled import njit
from hpcdl.compression.kernels.reproducible import LANES, UNIT, draw, total
from hpcdl.fabric.comm import Array

SMALLEST: Final = 1e-140
"""Norms below count as zero: squares of their entries underflow."""


@njit(nogil=True, cache=True)
def quantise(
    vector: Array, bucket: int, levels: int, norms: Array, symbols: Array, stream: np.uint64, position: int
) -> bool:
    """Write symbols and norms of buckets; subtract what they stand for from ``vector``.

    ``position``: of the first entry in the whole gradient. Return False if a norm is not finite.
    """
    lanes, random = np.empty(LANES), np.empty(bucket // 2 + 1, np.uint64)
    for b in range(len(norms)):
        start = b * bucket
        part = vector[start : start + bucket]
        norms[b] = np.sqrt(_squares(part, lanes))
        norm = np.float64(norms[b])
        if not np.isfinite(norm):
            return False
        if norm < SMALLEST:
            norms[b] = norm = np.float64(0)
        draw(random, stream, (position + start) >> 1)
        draws = random.view(np.uint32)[(position + start) & 1 :]
        inverse, unit = levels / norm if norm > 0.0 else 0.0, norm / levels
        most, numbers = np.int32(levels), symbols[start : start + bucket]
        for i in range(len(part)):
            x = part[i]
            level = min(np.int32(np.float64(abs(x)) * inverse + draws[i] * UNIT), most)
            value = part.dtype.type(level * unit)
            negative = x < 0
            numbers[i] = 2 * level - 1 + negative if level else 0
            part[i] = x - (-value if negative else value)
    return True


@njit(nogil=True, cache=True)
def _squares(part: Array, lanes: Array) -> float:
    used = min(LANES, len(part))
    lanes[:used] = 0
    for first in range(0, len(part), LANES):
        few = part[first : min(first + LANES, len(part))]
        for i in range(len(few)):
            x = np.float64(few[i])
            lanes[i] += x * x
    return total(lanes, used)


@njit(nogil=True, cache=True)
def add(symbols: Array, bucket: int, levels: int, norms: Array, into: Array) -> bool:
    """Add the value of each entry to ``into``; return False if a symbol is impossible."""
    valid = True
    for b in range(len(norms)):
        unit = np.float64(norms[b]) / levels
        most = np.uint32(2 * levels if norms[b] > 0 else 0)
        part, numbers = into[b * bucket : (b + 1) * bucket], symbols[b * bucket : (b + 1) * bucket]
        for i in range(len(part)):
            number = numbers[i]
            valid &= number <= most
            value = part.dtype.type(((number + 1) >> 1) * unit)
            part[i] += value if number & 1 else -value
    return valid
