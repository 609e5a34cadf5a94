"""Matrix product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.activation_pool import allocate

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import LinearGeometry


class Linear:
    """y = x weight^T + bias; dweight = dy^T x; dx = dy weight."""

    def __init__(self, geometry: LinearGeometry) -> None:
        self._outputs = geometry.outputs
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        self._saved = (x,)
        y = allocate((len(x), self._outputs), x.dtype)
        np.matmul(x, weight.T, out=y)
        if bias is not None:
            y += bias
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        (x,), self._saved = self._saved, ()
        np.matmul(dy.T, x, out=dweight)
        if dbias is not None:
            np.sum(dy, axis=0, out=dbias)
        if not needs_dx:
            return None
        dx = allocate((len(dy), weight.shape[1]), dy.dtype)
        np.matmul(dy, weight, out=dx)
        return dx
