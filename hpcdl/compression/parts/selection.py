"""Selection of entries: magnitudes, samples and quantiles of a vector, and the largest entries.

Magnitudes are compared as integers: for finite numbers, those of the bits without sign are in the same order. One
integer comparison finds large entries, infinities and NaN; compilers make vector instructions of it.
"""

from typing import Any, Final, NoReturn

import numpy as np

from hpcdl.compression.parts.protocol import Bytes, Layout, kernels
from hpcdl.fabric.comm import Array

SAMPLED: Final = 0.01
"""Share of a vector in a sample (Deep Gradient Compression: Lin 2018, section 3)."""
REACHING: Final = 50
"""Least number of entries in a sample that reach a quantile, so that their number varies by a seventh."""
MIN_SAMPLE: Final = 4096
"""Least size of a sample; a shorter vector is taken whole."""

Magnitude = np.unsignedinteger[Any]


def bits_of(vector: Array) -> Array:
    """Return a view of ``vector``, float32 or float64, as unsigned integers."""
    return vector.view(np.dtype(f"u{vector.itemsize}"))


def bits(value: float, dtype: np.dtype[np.generic]) -> Magnitude:
    """Return the bits of the magnitude of ``value``, which is rounded to ``dtype``."""
    return bits_of(np.abs(np.array([value], dtype)))[0]  # type: ignore[no-any-return]


def from_bits(magnitude: Magnitude, dtype: np.dtype[np.generic]) -> float:
    """Return the number, zero or more, of these bits."""
    return float(np.array([magnitude]).view(dtype)[0])


def largest(magnitudes: Array, count: int) -> Array:
    """Return a mask of the ``count`` largest of more magnitudes."""
    # Entries equal to the least one fill the remaining places in order: all machines choose alike.
    least = np.partition(magnitudes, len(magnitudes) - count)[len(magnitudes) - count]
    chosen: Array = magnitudes > least
    ties = np.flatnonzero(magnitudes == least)
    chosen[ties[: count - np.count_nonzero(chosen)]] = True
    return chosen


def quantile(sampled: Array, share: float) -> Magnitude:
    """Return the magnitude that this share of ``sampled`` reaches; ``sampled`` is put into another order."""
    rank = max(0, min(len(sampled) - 1, len(sampled) - round(share * len(sampled))))
    sampled.partition(rank)
    return sampled[rank]  # type: ignore[no-any-return]


def refuse(vector: Array, begin: int) -> NoReturn:
    """Raise FloatingPointError, which names the first value that is not finite."""
    position = int(np.flatnonzero(~np.isfinite(vector))[0])
    raise FloatingPointError(f"element {begin + position} of the flat gradient is {float(vector[position])}")


def subset(count: int, length: int, seed: int) -> Array:
    """Return ``count`` of the positions 0 to ``length`` - 1, int32, rising; all subsets are equally likely.

    Positions are drawn until enough are different; of more than half of them, those left out are drawn.
    """
    positions = np.empty(count, np.int32)
    kernels(None, "draws").subset(positions, length, np.uint64(seed))
    return positions


def gaps(indices: Array) -> Array:
    """Return the zeros before each of rising positions, uint32: of 0, 1, 5 they are 0, 0, 3."""
    ahead = indices.astype(np.uint32)
    ahead[1:] -= ahead[:-1].copy() + np.uint32(1)
    return ahead


def bitmap_of(indices: Array, length: int) -> Bytes:
    """Return one bit per position of a vector of ``length``, the first lowest; set at ``indices``."""
    marked = np.zeros(length, bool)
    marked[indices] = True
    return np.packbits(marked, bitorder="little")


def unpacked(bits: Bytes, count: int) -> Array:
    """Return ``count`` bits, bool. Raises ValueError if a bit behind them is set."""
    marked = np.unpackbits(bits, bitorder="little").view(bool)
    if marked[count:].any():
        raise ValueError(f"a bit is set behind {count}")
    return marked[:count]


def rising(ahead: Array, length: int, indices: Array) -> bool:
    """Fill ``indices``, int32, from gaps, uint32; return False if a position is not below ``length``."""
    # A corrupt message's gaps may add up to more than 32 bits have.
    positions = np.cumsum(ahead, dtype=np.int64) + np.arange(len(ahead))
    indices[:] = positions
    return not len(positions) or bool(positions[-1] < length)


MARGIN = 1.1
"""Candidates sought per entry wanted, besides three standard deviations of the sample."""


def entries(density: float, length: int) -> int:
    """Return the number of entries at this density: at least one of a vector that is not empty."""
    return min(length, max(1, round(density * length)))


def check_density(density: float) -> None:
    """Raise ValueError unless ``density`` is above 0 and at most 1."""
    if not 0 < density <= 1:
        raise ValueError(f"density must be above 0 and at most 1, not {density}")


def draw_seed(layout: Layout, begin: int, step: int) -> int:
    """Return a seed for the piece at ``begin`` in this step, the same on all ranks."""
    return int(np.random.SeedSequence([layout.seed, begin, step]).generate_state(1, np.uint64)[0])


class Search:
    """Search for the entries of largest magnitude in pieces of one layout's gradient, on its device.

    Positions, int32 and rising, and samples are on the host.
    """

    def __init__(self, layout: Layout) -> None:
        self.kernels = kernels(layout.device, "entries")
        self._layout = layout

    def sample(self, vector: Array, begin: int, step: int, share: float) -> Array:
        """Return the bits of the magnitudes of 1 % of ``vector``, for the quantile of this ``share``.

        More are taken if fewer than 50 would reach the quantile, or if they were fewer than 4096. One entry is
        drawn from each of equal pieces of the vector. ``begin``: its position in the whole gradient.
        """
        size = min(len(vector), max(MIN_SAMPLE, int(REACHING / share), int(SAMPLED * len(vector))))
        sampled = np.empty(size, f"u{vector.itemsize}")
        self.kernels.sample(vector, sampled, np.uint64(draw_seed(self._layout, begin, step)))
        return sampled

    def largest(self, vector: Array, begin: int, threshold: Magnitude, expected: int) -> Array:
        """Return the positions of all entries whose magnitude has at least the bits ``threshold``.

        ``expected`` is their likely number. Raises FloatingPointError for a value that is not finite.
        """
        positions, finite = self.kernels.find(vector, threshold, expected)
        if not finite:
            refuse(vector, begin)
        return positions  # type: ignore[no-any-return]

    def top(self, vector: Array, begin: int, step: int, k: int) -> Array:
        """Return the positions of the ``k`` entries with the largest magnitudes.

        Of equal magnitudes the first are taken; zeros never are. A sample gives a threshold that somewhat more
        entries reach; if too few do, all are searched. Raises FloatingPointError as :meth:`largest`.
        """
        if not len(vector):
            return np.empty(0, np.int32)
        sampled = self.sample(vector, begin, step, k / len(vector))
        wanted = k * len(sampled) / len(vector)
        # At least the bits of the smallest number above zero, so that zeros are left out.
        threshold = max(
            sampled.dtype.type(1), quantile(sampled, (MARGIN * wanted + 3 * wanted**0.5 + 1) / len(sampled))
        )
        positions = self.largest(vector, begin, threshold, round(1.5 * k))
        if len(positions) < k and threshold > 1:
            positions = self.largest(vector, begin, sampled.dtype.type(1), len(vector))
        return self.trimmed(vector, positions, k)

    def trimmed(self, vector: Array, positions: Array, k: int) -> Array:
        """Return those ``k`` of ``positions`` with the largest magnitudes, or all if there are no more."""
        if len(positions) <= k:
            return positions
        return positions[largest(bits_of(np.abs(self.kernels.take(vector, positions))), k)]
