"""Dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.buffer import Buffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import DropoutGeometry


class Dropout:
    """y = x * mask with mask 0 or 1 / (1 - ratio)."""

    def __init__(self, geometry: DropoutGeometry) -> None:
        self._ratio = geometry.ratio
        self._generator = np.random.default_rng(0)
        # Always float32, so that a network draws the same masks in float32 and float64.
        self._uniform = Buffer(geometry.shape, "float32")
        self._mask = Buffer(geometry.shape, geometry.dtype)
        self._y = Buffer(geometry.shape, geometry.dtype)
        self._dx = Buffer(geometry.shape, geometry.dtype)

    def reseed(self, key: Sequence[int]) -> None:
        """See :class:`hpcdl.nn.ops.Noise`."""
        self._generator = np.random.default_rng(key)

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Noise`."""
        uniform, mask, y = self._uniform.rows(len(x)), self._mask.rows(len(x)), self._y.rows(len(x))
        self._generator.random(dtype=np.float32, out=uniform)
        np.greater_equal(uniform, self._ratio, out=mask)
        mask *= 1 / (1 - self._ratio)
        np.multiply(x, mask, out=y)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Noise`."""
        dx = self._dx.rows(len(dy))
        np.multiply(dy, self._mask.rows(len(dy)), out=dx)
        return dx
