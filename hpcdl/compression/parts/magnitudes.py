"""Magnitudes of a vector as integers: for finite numbers, those of the bits without sign are in the same order.

One integer comparison finds large entries, infinities and NaN; compilers make vector instructions of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Layout
    from hpcdl.fabric.comm import Array

BLOCK: Final = 64
"""Entries of which only the largest is looked at first."""
SAMPLED: Final = 0.01
"""Share of a vector in a sample (Deep Gradient Compression: Lin 2018, section 3)."""
LEAST: Final = 4096
"""Least size of a sample; a shorter vector is taken whole."""


def bits_of(vector: Array) -> Array:
    """Return a view of ``vector``, float32 or float64, as unsigned integers."""
    return vector.view(np.dtype(f"u{vector.itemsize}"))


def bits(value: float, dtype: np.dtype[Any]) -> Any:
    """Return the bits of the magnitude of ``value``, which is rounded to ``dtype``."""
    return bits_of(np.abs(np.array([value], dtype)))[0]


def check(vector: Array, layout: Layout, begin: int) -> None:
    """Raise FloatingPointError if a value is infinite or not a number.

    ``begin`` is the position of ``vector`` in the whole gradient.
    """
    refuse(vector, layout, begin, _most(bits_of(vector)))


def from_bits(magnitude: Any, dtype: np.dtype[Any]) -> float:
    """Return the number, zero or more, of these bits."""
    return float(np.array([magnitude]).view(dtype)[0])


def sample(vector: Array, seed: int) -> Array:
    """Return the bits of the magnitudes of 1 % of ``vector``, at least of 4096 entries or of all.

    One entry is drawn from each of equal pieces of the vector.
    """
    size = min(len(vector), max(LEAST, int(SAMPLED * len(vector))))
    seen = bits_of(vector)
    found = np.empty(size, seen.dtype)
    _sample(seen, found, np.uint64(seed))
    return found


def quantile(magnitudes: Array, share: float) -> Any:
    """Return the magnitude that this share of ``magnitudes`` reaches; they are put into another order."""
    rank = max(0, min(len(magnitudes) - 1, len(magnitudes) - round(share * len(magnitudes))))
    magnitudes.partition(rank)
    return magnitudes[rank]


def largest(vector: Array, layout: Layout, begin: int, threshold: Any, expected: int) -> Array:
    """Return the positions, int32 (count,), of all entries whose magnitude has at least the bits ``threshold``.

    ``expected`` is their likely number. Raises FloatingPointError for a value that is infinite or not a number;
    ``begin`` is the position of ``vector`` in the whole gradient.
    """
    seen = bits_of(vector)
    found = np.empty(min(len(vector), expected) + BLOCK, np.int32)
    count, most = _collect(seen, threshold, found)
    refuse(vector, layout, begin, most)
    if count > len(found) - BLOCK:
        found = np.empty(count + BLOCK, np.int32)
        _collect(seen, threshold, found)
    return found[:count]


def refuse(vector: Array, layout: Layout, begin: int, most: Any) -> None:
    """Raise FloatingPointError if ``most``, the bits of the largest magnitude, are those of no finite number."""
    if most < bits(np.inf, vector.dtype):
        return
    position = int(np.flatnonzero(~np.isfinite(vector))[0])
    place = next((t for t in layout.tensors if t.span.start <= begin + position < t.span.stop), None)
    where = f" ({place.name}, element {begin + position - place.span.start})" if place is not None else ""
    raise FloatingPointError(f"element {begin + position} of the gradient{where} is {vector[position]}")


@njit(nogil=True, cache=True)
def _collect(seen: Any, threshold: Any, found: Any) -> Any:
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
def _sample(seen: Any, found: Any, seed: Any) -> None:
    mask = ~(seen.dtype.type(1) << seen.dtype.type(8 * seen.itemsize - 1))
    state = seed
    for i in range(len(found)):
        begin, end = i * len(seen) // len(found), (i + 1) * len(seen) // len(found)
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)  # Knuth's MMIX
        found[i] = seen[begin + np.int64((state >> np.uint64(33)) % np.uint64(end - begin))] & mask


@njit(nogil=True, cache=True)
def _most(seen: Any) -> Any:
    mask = ~(seen.dtype.type(1) << seen.dtype.type(8 * seen.itemsize - 1))
    most = seen.dtype.type(0)
    for i in range(len(seen)):
        most = max(most, seen[i] & mask)
    return most
