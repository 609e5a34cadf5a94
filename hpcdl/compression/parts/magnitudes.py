"""Magnitudes of a vector as integers: for finite numbers, those of the bits without sign are in the same order.

One integer comparison finds large entries, infinities and NaN; compilers make vector instructions of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array

SAMPLED: Final = 0.01
"""Share of a vector in a sample (Deep Gradient Compression: Lin 2018, section 3)."""
REACHING: Final = 50
"""Least number of entries in a sample that reach a quantile, so that their number varies by a seventh."""
LEAST: Final = 4096
"""Least size of a sample; a shorter vector is taken whole."""


def bits_of(vector: Array) -> Array:
    """Return a view of ``vector``, float32 or float64, as unsigned integers."""
    return vector.view(np.dtype(f"u{vector.itemsize}"))


def bits(value: float, dtype: np.dtype[Any]) -> Any:
    """Return the bits of the magnitude of ``value``, which is rounded to ``dtype``."""
    return bits_of(np.abs(np.array([value], dtype)))[0]


def check(vector: Array, begin: int) -> None:
    """Raise FloatingPointError if a value is infinite or not a number.

    ``begin`` is the position of ``vector`` in the whole gradient.
    """
    from hpcdl.compression.kernels import magnitudes  # late: listing compressors must not load numba

    refuse(vector, begin, magnitudes.highest(bits_of(vector)))


def from_bits(magnitude: Any, dtype: np.dtype[Any]) -> float:
    """Return the number, zero or more, of these bits."""
    return float(np.array([magnitude]).view(dtype)[0])


def sample(vector: Array, seed: int, share: float) -> Array:
    """Return the bits of the magnitudes of 1 % of ``vector``, for the quantile of this ``share``.

    More are taken if fewer than 50 would reach the quantile, or if they were fewer than 4096. One entry is drawn
    from each of equal pieces of the vector.
    """
    from hpcdl.compression.kernels import magnitudes  # late: listing compressors must not load numba

    size = min(len(vector), max(LEAST, int(REACHING / share), int(SAMPLED * len(vector))))
    seen = bits_of(vector)
    found = np.empty(size, seen.dtype)
    magnitudes.sample(seen, found, np.uint64(seed))
    return found


def quantile(found: Array, share: float) -> Any:
    """Return the magnitude that this share of ``found`` reaches; ``found`` is put into another order."""
    rank = max(0, min(len(found) - 1, len(found) - round(share * len(found))))
    found.partition(rank)
    return found[rank]


def largest(vector: Array, begin: int, threshold: Any, expected: int) -> Array:
    """Return the positions, int32 (count,), of all entries whose magnitude has at least the bits ``threshold``.

    ``expected`` is their likely number. Raises FloatingPointError for a value that is infinite or not a number;
    ``begin`` is the position of ``vector`` in the whole gradient.
    """
    from hpcdl.compression.kernels import magnitudes  # late: listing compressors must not load numba

    seen = bits_of(vector)
    found = np.empty(min(len(vector), expected) + magnitudes.BLOCK, np.int32)
    count, most = magnitudes.collect(seen, threshold, found)
    refuse(vector, begin, most)
    if count > len(found) - magnitudes.BLOCK:
        found = np.empty(count + magnitudes.BLOCK, np.int32)
        magnitudes.collect(seen, threshold, found)
    return found[:count]


def refuse(vector: Array, begin: int, most: Any) -> None:
    """Raise FloatingPointError if ``most``, the bits of the largest magnitude, are those of no finite number."""
    if most >= bits(np.inf, vector.dtype):
        position = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise FloatingPointError(f"element {begin + position} of the flat gradient is {vector[position]}")
