"""First values of parameters, filled in place.

An initialiser gets a host array of the parameter's shape, outputs first as in (K, R, S, C) or (out, in), and
a generator. The numbers drawn do not depend on the array's dtype: float32 and float64 networks start alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.fabric.comm import Array

if TYPE_CHECKING:
    from hpcdl.nn.geometry import Shape

Initializer = Callable[[Array, np.random.Generator], None]
"""Fills its first argument."""

# VGG's largest matrix has 10^8 elements; drawn at once in float64 it would need twice its own memory.
_PIECE = 1 << 20


def he(values: Array, generator: np.random.Generator) -> None:
    """Normal with variance 2 / fan_in, for layers followed by a ReLU (He et al. 2015, section 2.2)."""
    gaussian(math.sqrt(2 / _fan_in(values.shape)))(values, generator)


def xavier(values: Array, generator: np.random.Generator) -> None:
    """Uniform with variance 1 / fan_in: Caffe's ``xavier`` (after Glorot & Bengio 2010)."""
    bound = math.sqrt(3 / _fan_in(values.shape))
    for piece in _pieces(values):
        piece[:] = bound * (2 * generator.random(piece.size) - 1)


def gaussian(deviation: float) -> Initializer:
    """Normal with mean 0 and a given standard deviation."""

    def fill(values: Array, generator: np.random.Generator) -> None:
        for piece in _pieces(values):
            piece[:] = deviation * generator.standard_normal(piece.size)

    return fill


def constant(value: float) -> Initializer:
    """Fill with the same value everywhere."""

    def fill(values: Array, _generator: np.random.Generator) -> None:
        values[...] = value

    return fill


zeros = constant(0.0)
ones = constant(1.0)


def _fan_in(shape: Shape) -> int:
    return math.prod(shape[1:])


def _pieces(values: Array) -> list[Array]:
    flat = values.reshape(-1)
    return [flat[lo : lo + _PIECE] for lo in range(0, flat.size, _PIECE)]
