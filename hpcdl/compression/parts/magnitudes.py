"""Magnitudes of a vector as integers: for finite numbers, those of the bits without sign are in the same order.

One integer comparison finds large entries, infinities and NaN; compilers make vector instructions of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from hpcdl.compression.parts.protocol import kernels

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Device
    from hpcdl.fabric.comm import Array

SAMPLED: Final = 0.01
"""Share of a vector in a sample (Deep Gradient Compression: Lin 2018, section 3)."""
REACHING: Final = 50
"""Least number of entries in a sample that reach a quantile, so that their number varies by a seventh."""
MIN_SAMPLE: Final = 4096
"""Least size of a sample; a shorter vector is taken whole."""


def bits_of(vector: Array) -> Array:
    """Return a view of ``vector``, float32 or float64, as unsigned integers."""
    return vector.view(np.dtype(f"u{vector.itemsize}"))


def bits(value: float, dtype: np.dtype[Any]) -> Any:
    """Return the bits of the magnitude of ``value``, which is rounded to ``dtype``."""
    return bits_of(np.abs(np.array([value], dtype)))[0]


def check(vector: Array, begin: int, device: Device | None) -> None:
    """Raise FloatingPointError if a value is infinite or not a number.

    ``begin`` is the position of ``vector`` in the whole gradient; ``device`` holds it.
    """
    if not kernels(device, "entries").are_finite(vector):
        refuse(vector, begin)


def from_bits(magnitude: Any, dtype: np.dtype[Any]) -> float:
    """Return the number, zero or more, of these bits."""
    return float(np.array([magnitude]).view(dtype)[0])


def sample(vector: Array, seed: int, share: float, device: Device | None) -> Array:
    """Return the bits of the magnitudes of 1 % of ``vector``, on the host, for the quantile of this ``share``.

    More are taken if fewer than 50 would reach the quantile, or if they were fewer than 4096. One entry is drawn
    from each of equal pieces of the vector.
    """
    size = min(len(vector), max(MIN_SAMPLE, int(REACHING / share), int(SAMPLED * len(vector))))
    sampled = np.empty(size, f"u{vector.itemsize}")
    kernels(device, "entries").sample(vector, sampled, np.uint64(seed))
    return sampled


def quantile(sampled: Array, share: float) -> Any:
    """Return the magnitude that this share of ``sampled`` reaches; ``sampled`` is put into another order."""
    rank = max(0, min(len(sampled) - 1, len(sampled) - round(share * len(sampled))))
    sampled.partition(rank)
    return sampled[rank]


def largest(vector: Array, begin: int, threshold: Any, expected: int, device: Device | None) -> Array:
    """Return the positions, int32 (count,), of all entries whose magnitude has at least the bits ``threshold``.

    ``expected`` is their likely number. Raises FloatingPointError for a value that is infinite or not a number;
    ``begin`` is the position of ``vector`` in the whole gradient; ``device`` holds it. Positions are on the host.
    """
    positions, finite = kernels(device, "entries").find(vector, threshold, expected)
    if not finite:
        refuse(vector, begin)
    return positions  # type: ignore[no-any-return]


def refuse(vector: Array, begin: int) -> NoReturn:
    """Raise FloatingPointError, which names the first value that is not finite."""
    position = int(np.flatnonzero(~np.isfinite(vector))[0])
    raise FloatingPointError(f"element {begin + position} of the flat gradient is {float(vector[position])}")
