"""Dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.memory import lend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import DropoutGeometry


class Dropout:
    """y = x * mask with mask 0 or 1 / (1 - ratio)."""

    def __init__(self, geometry: DropoutGeometry) -> None:
        self._ratio = geometry.ratio
        self._generator = np.random.default_rng(0)
        self._kept: tuple[Array, ...] = ()

    def reseed(self, key: Sequence[int]) -> None:
        """See :class:`hpcdl.nn.ops.Noise`."""
        self._generator = np.random.default_rng(key)

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Noise`."""
        self._kept = ()
        # Always float32, so that a network draws the same masks in float32 and float64.
        uniform, mask, y = lend(x.shape, "float32"), lend(x.shape, x.dtype), lend(x.shape, x.dtype)
        self._generator.random(dtype=np.float32, out=uniform)
        np.greater_equal(uniform, self._ratio, out=mask)
        mask *= 1 / (1 - self._ratio)
        np.multiply(x, mask, out=y)
        self._kept = (mask,)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Noise`."""
        (mask,), self._kept = self._kept, ()
        dx = lend(dy.shape, dy.dtype)
        np.multiply(dy, mask, out=dx)
        return dx
