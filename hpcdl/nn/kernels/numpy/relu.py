"""Rectified linear unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.activation_pool import allocate

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Blob


class ReLU:
    """y = max(x, 0); dx = dy where y > 0."""

    def __init__(self, geometry: Blob) -> None:
        self._geometry = geometry
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._saved = ()
        y = allocate(x.shape, self._geometry.dtype)
        np.maximum(x, 0, out=y)
        self._saved = (y,)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        (y,), self._saved = self._saved, ()
        dx = allocate(dy.shape, dy.dtype)
        np.multiply(dy, np.greater(y, 0), out=dx)
        return dx
