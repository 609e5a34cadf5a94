"""Rectified linear unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit

from hpcdl.nn.kernels.numpy.activation_pool import allocate
from hpcdl.nn.threads import parallel_ranges

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Blob


class ReLU:
    """y = max(x, 0); dx = dy where y > 0."""

    def __init__(self, geometry: Blob) -> None:
        self._dtype = geometry.dtype
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._saved = ()
        y = allocate(x.shape, self._dtype)
        source, to = x.reshape(-1), y.reshape(-1)
        parallel_ranges(x.size, lambda i, j: _rectify(source[i:j], to[i:j]), elements=x.size)
        self._saved = (y,)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        (y,), self._saved = self._saved, ()
        dx = allocate(dy.shape, self._dtype)
        output, gradient, to = y.reshape(-1), dy.reshape(-1), dx.reshape(-1)
        parallel_ranges(
            dy.size, lambda i, j: _where_positive(output[i:j], gradient[i:j], to[i:j]), elements=dy.size
        )
        return dx


@njit(nogil=True, cache=True)
def _rectify(x: Any, y: Any) -> None:
    zero = x.dtype.type(0)
    for i in range(len(x)):
        y[i] = max(x[i], zero)  # propagates NaN


@njit(nogil=True, cache=True)
def _where_positive(y: Any, dy: Any, dx: Any) -> None:
    zero = dy.dtype.type(0)
    for i in range(len(dy)):
        dx[i] = dy[i] if y[i] > zero else zero
