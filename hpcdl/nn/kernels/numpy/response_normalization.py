"""Local response normalisation across channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.buffer import Buffer

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import ResponseGeometry


class ResponseNormalization:
    """y = x scale^-beta with scale = k + alpha / size * (x^2 summed over neighbouring channels).

    dx = dy scale^-beta - 2 alpha beta / size * x * (dy y / scale summed over neighbouring channels).
    """

    def __init__(self, geometry: ResponseGeometry) -> None:
        self._geometry = geometry
        shape, dtype = geometry.shape, geometry.dtype
        self._x = np.empty((0, *shape), dtype)
        self._scale = Buffer(shape, dtype)
        self._power = Buffer(shape, dtype)
        self._y = Buffer(shape, dtype)
        self._dx = Buffer(shape, dtype)
        self._sum = Buffer(shape, dtype)
        # Channels beyond the edges stay zero; only the inside is written.
        self._reach = geometry.size // 2
        self._wide = Buffer((*shape[:-1], shape[-1] + 2 * self._reach), dtype, fill=0.0)

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._x = x
        geometry = self._geometry
        scale, power, y = self._scale.rows(len(x)), self._power.rows(len(x)), self._y.rows(len(x))
        self._neighbours(x, x, out=scale)
        scale *= geometry.alpha / geometry.size
        scale += geometry.k
        np.power(scale, -geometry.beta, out=power)
        np.multiply(x, power, out=y)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        n, geometry = len(dy), self._geometry
        dx, total = self._dx.rows(n), self._sum.rows(n)
        np.divide(self._y.rows(n), self._scale.rows(n), out=dx)
        self._neighbours(dy, dx, out=total)
        total *= self._x
        total *= -2 * geometry.alpha * geometry.beta / geometry.size
        np.multiply(dy, self._power.rows(n), out=dx)
        dx += total
        return dx

    def _neighbours(self, a: Array, b: Array, out: Array) -> None:
        """Set ``out`` to a * b summed over ``size`` channels around each."""
        wide, channels = self._wide.rows(len(a)), a.shape[-1]
        np.multiply(a, b, out=wide[..., self._reach : self._reach + channels])
        out[...] = 0
        for i in range(self._geometry.size):
            out += wide[..., i : i + channels]
