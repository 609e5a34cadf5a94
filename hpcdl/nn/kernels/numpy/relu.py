"""Rectified linear unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.buffer import Buffer

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Blob


class ReLU:
    """y = max(x, 0); dx = dy where y > 0."""

    def __init__(self, geometry: Blob) -> None:
        self._y = Buffer(geometry.shape, geometry.dtype)
        self._dx = Buffer(geometry.shape, geometry.dtype)
        self._mask = Buffer(geometry.shape, "bool")

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        y = self._y.rows(len(x))
        np.maximum(x, 0, out=y)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        mask, dx = self._mask.rows(len(dy)), self._dx.rows(len(dy))
        np.greater(self._y.rows(len(dy)), 0, out=mask)
        np.multiply(dy, mask, out=dx)
        return dx
