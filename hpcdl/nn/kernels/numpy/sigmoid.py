"""Logistic sigmoid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.activation_pool import allocate

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Blob


class Sigmoid:
    """y = 1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2, which overflows nowhere; dx = dy y (1 - y)."""

    def __init__(self, geometry: Blob) -> None:
        self._geometry = geometry
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._saved = ()
        y = allocate(x.shape, self._geometry.dtype)
        np.multiply(x, 0.5, out=y)
        np.tanh(y, out=y)
        y += 1
        y *= 0.5
        self._saved = (y,)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        (y,), self._saved = self._saved, ()
        dx = allocate(dy.shape, dy.dtype)
        np.subtract(1, y, out=dx)
        dx *= y
        dx *= dy
        return dx
