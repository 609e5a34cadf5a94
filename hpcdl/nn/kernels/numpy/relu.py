"""Rectified linear unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.memory import lend

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Blob


class ReLU:
    """y = max(x, 0); dx = dy where y > 0."""

    def __init__(self, geometry: Blob) -> None:
        self._geometry = geometry
        self._kept: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._kept = ()
        y = lend(x.shape, self._geometry.dtype)
        np.maximum(x, 0, out=y)
        self._kept = (y,)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        (y,), self._kept = self._kept, ()
        dx = lend(dy.shape, dy.dtype)
        np.multiply(dy, np.greater(y, 0), out=dx)
        return dx
