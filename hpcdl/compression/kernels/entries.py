"""Kernels that search and sample magnitudes; see :mod:`hpcdl.compression.parts.selection`."""

from typing import Final

import numpy as np

from hpcdl.compiled import njit
from hpcdl.compression.parts.selection import Magnitude, bits, bits_of
from hpcdl.fabric.comm import Array


def take(vector: Array, indices: Array) -> Array:
    """Return the entries at ``indices``."""
    return vector[indices]


def put(indices: Array, values: Array, into: Array) -> None:
    """Write ``values`` at ``indices``."""
    into[indices] = values


def add(indices: Array, values: Array, into: Array) -> None:
    """Add ``values`` at ``indices``, which are different."""
    into[indices] += values


@njit(nogil=True, cache=True, error_model="numpy")
def correct(gradient: Array, velocity: Array, accumulated: Array, momentum: float, scale: float) -> None:
    """Set u = ``momentum`` u + ``scale`` g and v = v + u; ``gradient`` becomes v (Lin 2018, equation 4).

    ``velocity`` is u and ``accumulated`` is v; all have the shape (n,).
    """
    for i in range(len(gradient)):
        velocity[i] = momentum * velocity[i] + scale * gradient[i]
        accumulated[i] += velocity[i]
        gradient[i] = accumulated[i]


BLOCK: Final = 64
"""Entries of which only the largest is looked at first."""


def find(vector: Array, threshold: Magnitude, likely: int) -> tuple[Array, bool]:
    """Return positions, int32, of entries of at least the magnitude ``threshold``, and True if all are finite.

    ``likely``: their probable number.
    """
    seen = bits_of(vector)
    positions = np.empty(min(len(seen), likely) + BLOCK, np.int32)
    count, most = collect(seen, threshold, positions)
    if count > len(positions) - BLOCK:
        positions = np.empty(count + BLOCK, np.int32)
        collect(seen, threshold, positions)
    return positions[:count], bool(most < bits(np.inf, vector.dtype))


def sample(vector: Array, sampled: Array, seed: np.uint64) -> None:
    """Fill ``sampled`` with the bits of magnitudes, one from each of equal pieces of ``vector``."""
    sample_bits(bits_of(vector), sampled, seed)


def are_finite(vector: Array) -> bool:
    """Return True if all entries are finite."""
    return bool(np.isfinite(vector).all())


@njit(nogil=True, cache=True)
def collect(seen: Array, threshold: Magnitude, positions: Array) -> tuple[int, Magnitude]:
    """Fill ``positions`` as long as a block fits; return the number of all and the largest magnitude."""
    mask = ~(seen.dtype.type(1) << seen.dtype.type(8 * seen.itemsize - 1))
    count, highest = 0, seen.dtype.type(0)
    for begin in range(0, len(seen), BLOCK):
        block = seen[begin : begin + BLOCK]
        # A maximum vectorises, a search does not; few blocks have a large entry.
        most = seen.dtype.type(0)
        for i in range(len(block)):
            most = max(most, block[i] & mask)
        if most < threshold:
            continue
        highest = max(highest, most)
        if count + BLOCK <= len(positions):
            for i in range(len(block)):
                positions[count] = begin + i
                count += block[i] & mask >= threshold
        else:
            for i in range(len(block)):
                count += block[i] & mask >= threshold
    return count, highest


@njit(nogil=True, cache=True)
def sample_bits(seen: Array, sampled: Array, seed: np.uint64) -> None:
    """Fill ``sampled`` with magnitudes, one from each of equal pieces of ``seen``."""
    mask = ~(seen.dtype.type(1) << seen.dtype.type(8 * seen.itemsize - 1))
    state = seed
    for i in range(len(sampled)):
        begin, end = i * len(seen) // len(sampled), (i + 1) * len(seen) // len(sampled)
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)  # Knuth's MMIX
        sampled[i] = seen[begin + np.int64((state >> np.uint64(33)) % np.uint64(end - begin))] & mask
