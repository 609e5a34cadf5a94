"""Initialisers of parameters. They fill an array in place.

An initialiser gets a host array of the parameter's shape and a generator. The first axis is the outputs, as in
(K, R, S, C) or (out, in). The drawn numbers do not depend on the dtype of the array.
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
"""Fills an array with values drawn from a generator."""

# VGG's largest matrix has 10^8 elements; drawing them in pieces avoids a second array of that size in float64.
_PIECE = 1 << 20


def he(values: Array, generator: np.random.Generator) -> None:
    """Fill with normal numbers of variance 2 / fan_in, for layers before a ReLU (He et al. 2015, section 2.2)."""
    gaussian(math.sqrt(2 / _fan_in(values.shape)))(values, generator)


def xavier(values: Array, generator: np.random.Generator) -> None:
    """Fill with uniform numbers of variance 1 / fan_in: Caffe's ``xavier`` (after Glorot & Bengio 2010)."""
    bound = math.sqrt(3 / _fan_in(values.shape))
    for piece in _pieces(values):
        piece[:] = bound * (2 * generator.random(piece.size) - 1)


def gaussian(deviation: float) -> Initializer:
    """Return an initialiser: normal distribution with mean 0 and the given standard deviation."""

    def fill(values: Array, generator: np.random.Generator) -> None:
        for piece in _pieces(values):
            piece[:] = deviation * generator.standard_normal(piece.size)

    return fill


def constant(value: float) -> Initializer:
    """Return an initialiser that sets all elements to ``value``."""

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
