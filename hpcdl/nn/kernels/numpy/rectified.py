"""A convolution or a matrix product with a ReLU behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.memory import lend

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.ops import Affine


class Rectified:
    """y = max(affine(x), 0), in the affine op's own array; dy counts where y > 0."""

    def __init__(self, affine: Affine) -> None:
        self._affine = affine
        self._kept: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        self._kept = ()
        y = self._affine.forward(x, weight, bias)
        np.maximum(y, 0, out=y)
        self._kept = (y,)
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, wanted: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        (y,), self._kept = self._kept, ()
        dz = lend(dy.shape, dy.dtype)
        np.multiply(dy, np.greater(y, 0), out=dz)
        return self._affine.backward(dz, weight, dweight, dbias, wanted)
