"""Local response normalisation across channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.activation_pool import allocate

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import ResponseGeometry


class ResponseNormalization:
    """y = x scale^-beta with scale = k + alpha / size * (x^2 summed over neighbouring channels).

    dx = dy scale^-beta - 2 alpha beta / size * x * (dy y / scale summed over neighbouring channels).
    """

    def __init__(self, geometry: ResponseGeometry) -> None:
        self._geometry = geometry
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._saved = ()
        geometry = self._geometry
        scale, power, y = (allocate(x.shape, x.dtype) for _ in range(3))
        self._neighbours(x, x, out=scale)
        scale *= geometry.alpha / geometry.size
        scale += geometry.k
        np.power(scale, -geometry.beta, out=power)
        np.multiply(x, power, out=y)
        self._saved = (x, scale, power, y)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        (x, scale, power, y), self._saved = self._saved, ()
        geometry = self._geometry
        dx, total = allocate(dy.shape, dy.dtype), allocate(dy.shape, dy.dtype)
        np.divide(y, scale, out=dx)
        self._neighbours(dy, dx, out=total)
        total *= x
        total *= -2 * geometry.alpha * geometry.beta / geometry.size
        np.multiply(dy, power, out=dx)
        dx += total
        return dx

    def _neighbours(self, a: Array, b: Array, out: Array) -> None:
        """Set ``out`` to a * b summed over the ``size`` nearest channels."""
        reach, channels = self._geometry.size // 2, a.shape[-1]
        products = allocate(a.shape, a.dtype)
        np.multiply(a, b, out=products)
        out[...] = products
        for distance in range(1, min(reach, channels - 1) + 1):
            out[..., :-distance] += products[..., distance:]
            out[..., distance:] += products[..., :-distance]
