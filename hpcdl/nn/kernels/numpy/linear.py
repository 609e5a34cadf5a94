"""Matrix product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.buffer import Buffer

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import LinearGeometry


class Linear:
    """y = x weight^T + bias; dweight = dy^T x; dx = dy weight."""

    def __init__(self, geometry: LinearGeometry) -> None:
        self._x = np.empty((0, geometry.inputs), geometry.dtype)
        self._y = Buffer((geometry.outputs,), geometry.dtype)
        self._dx = Buffer((geometry.inputs,), geometry.dtype)

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        self._x = x
        y = self._y.rows(len(x))
        np.matmul(x, weight.T, out=y)
        if bias is not None:
            y += bias
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, wanted: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        np.matmul(dy.T, self._x, out=dweight)
        if dbias is not None:
            np.sum(dy, axis=0, out=dbias)
        if not wanted:
            return None
        dx = self._dx.rows(len(dy))
        np.matmul(dy, weight, out=dx)
        return dx
