"""Convolution or matrix product followed by a ReLU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.activation_pool import allocate

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.ops import Affine


class Rectified:
    """y = max(affine(x), 0), computed in the affine op's array; dz = dy where y > 0."""

    def __init__(self, affine: Affine) -> None:
        self._affine = affine
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        self._saved = ()
        y = self._affine.forward(x, weight, bias)
        np.maximum(y, 0, out=y)
        self._saved = (y,)
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        (y,), self._saved = self._saved, ()
        dz = allocate(dy.shape, dy.dtype)
        np.multiply(dy, np.greater(y, 0), out=dz)
        return self._affine.backward(dz, weight, dweight, dbias, needs_dx)
