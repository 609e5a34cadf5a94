"""Initialisers of parameters. They fill an array in place.

An initialiser gets a host array and the draws of its elements. The first axis of a variable is the outputs. The
drawn numbers do not depend on the dtype of the array.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import Shape

PIECE: Final = 1 << 16
"""Elements drawn at once; their float64 numbers fit into a cache."""
COUNTED: Final = 4
"""Random numbers for each count of the generator."""


@dataclass(frozen=True)
class Draws:
    """Random numbers of a variable's elements, by a counter-based generator (Philox; Salmon et al. 2011).

    Each number depends only on ``key`` and on the element's position in the whole variable, so that a rank draws
    its part of a split variable alone.
    """

    key: tuple[int, int]
    shape: Shape
    """Shape of the whole variable, whose first axis is the outputs."""
    cut: tuple[Shape, int, slice]
    """The part of the whole variable: reshaped to a shape, positions on an axis of it."""

    @property
    def fan_in(self) -> int:
        return math.prod(self.shape[1:])

    def uniform(self, values: Array, low: float, high: float) -> None:
        """Fill ``values`` with uniform numbers between ``low`` and ``high``."""
        for piece, begin in self._pieces(values):
            piece[:] = low + (high - low) * self._uniform(begin, len(piece))

    def normal(self, values: Array, deviation: float) -> None:
        """Fill ``values`` with normal numbers of mean 0, by the transform of Box and Muller (1958)."""
        for piece, begin in self._pieces(values):
            # Two uniform numbers give two normal ones: begin with a whole pair, as the whole tensor's draw does.
            skipped = begin % 2
            numbers = self._uniform(begin - skipped, skipped + len(piece) + (begin + len(piece)) % 2)
            radius, angle = deviation * np.sqrt(-2 * np.log1p(-numbers[::2])), 2 * np.pi * numbers[1::2]
            numbers[::2], numbers[1::2] = radius * np.cos(angle), radius * np.sin(angle)
            piece[:] = numbers[skipped : skipped + len(piece)]

    def _uniform(self, begin: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the numbers in [0, 1) of ``count`` positions from ``begin`` on."""
        # A count of the generator is four numbers, so that any position is reached without drawing those before.
        counter, skipped = divmod(begin, COUNTED)
        generator = np.random.Generator(np.random.Philox(key=self.key, counter=counter))
        return generator.random(skipped + count)[skipped:]

    def _pieces(self, values: Array) -> Iterator[tuple[Array, int]]:
        """Yield short consecutive parts of ``values``, each with its first position in the whole variable."""
        view, axis, positions = self.cut
        inner = math.prod(view[axis + 1 :])
        low, high, _ = positions.indices(view[axis]) if view else (0, 1, 1)
        length, stride = (high - low) * inner, (view[axis] if view else 1) * inner
        for row, run in enumerate(values.reshape(-1, length) if length else ()):
            for begin in range(0, length, PIECE):
                yield run[begin : begin + PIECE], row * stride + low * inner + begin


def draws(seed: int, name: str, shape: Shape) -> Draws:
    """Return the draws of the whole variable ``name``."""
    first, second = np.random.SeedSequence((seed, crc32(name.encode()))).generate_state(2, np.uint64)
    return Draws((int(first), int(second)), shape, (shape, 0, slice(None)))


Initializer = Callable[[Array, Draws], None]
"""Fills an array with values drawn for its elements."""


def he(values: Array, draws: Draws) -> None:
    """Fill with normal numbers of variance 2 / fan_in, for layers before a ReLU (He et al. 2015, section 2.2)."""
    draws.normal(values, math.sqrt(2 / draws.fan_in))


def xavier(values: Array, draws: Draws) -> None:
    """Fill with uniform numbers of variance 1 / fan_in: Caffe's ``xavier`` (after Glorot & Bengio 2010)."""
    bound = math.sqrt(3 / draws.fan_in)
    draws.uniform(values, -bound, bound)


def gaussian(deviation: float) -> Initializer:
    """Return an initialiser: normal distribution with mean 0 and the given standard deviation."""
    return lambda values, draws: draws.normal(values, deviation)


def constant(value: float) -> Initializer:
    """Return an initialiser that sets all elements to ``value``."""
    return lambda values, _draws: values.fill(value)


zeros = constant(0.0)
ones = constant(1.0)


def per_filter(fill: Initializer) -> Initializer:
    """Return an initialiser that fills (P, Q, K, R, S, C) as P Q K filters (R, S, C)."""
    return lambda values, draws: fill(values, replace(draws, shape=(math.prod(draws.shape[:3]), *draws.shape[3:])))
