"""Rectified linear unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit

from hpcdl.nn.kernels.numpy.memory import lend
from hpcdl.nn.threads import in_parts

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Blob


class ReLU:
    """y = max(x, 0); dx = dy where y > 0."""

    def __init__(self, geometry: Blob) -> None:
        self._dtype = geometry.dtype
        self._kept: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._kept = ()
        y = lend(x.shape, self._dtype)
        source, to = x.reshape(-1), y.reshape(-1)
        in_parts(x.size, lambda i, j: _rectify(source[i:j], to[i:j]), numbers=x.size)
        self._kept = (y,)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        (y,), self._kept = self._kept, ()
        dx = lend(dy.shape, self._dtype)
        output, gradient, to = y.reshape(-1), dy.reshape(-1), dx.reshape(-1)
        in_parts(dy.size, lambda i, j: _where_positive(output[i:j], gradient[i:j], to[i:j]), numbers=dy.size)
        return dx


@njit(nogil=True, cache=True)
def _rectify(x: Any, y: Any) -> None:
    zero = x.dtype.type(0)
    for i in range(len(x)):
        y[i] = max(x[i], zero)  # a NaN stays


@njit(nogil=True, cache=True)
def _where_positive(y: Any, dy: Any, dx: Any) -> None:
    zero = dy.dtype.type(0)
    for i in range(len(dy)):
        dx[i] = dy[i] if y[i] > zero else zero
