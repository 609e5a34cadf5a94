"""ReLU and concatenation."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from numba import njit

from hpcdl.nn.kernels.numba.vectors import as_pixels, copy
from hpcdl.nn.kernels.numpy.activation_pool import allocate
from hpcdl.nn.threads import parallel_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Blob, ConcatenationGeometry


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


class Concatenation:
    """Concatenate blobs along the last axis and split their gradients, one pixel at a time."""

    def __init__(self, geometry: ConcatenationGeometry) -> None:
        self._shapes = geometry.shapes
        self._begins = list(accumulate((shape[-1] for shape in geometry.shapes[:-1]), initial=0))
        self._output = (*geometry.shapes[0][:-1], sum(shape[-1] for shape in geometry.shapes))

    def forward(self, pieces: Sequence[Array]) -> Array:
        """See :class:`hpcdl.nn.ops.Concatenation`."""
        y = allocate((len(pieces[0]), *self._output), pieces[0].dtype)
        for piece, begin in zip(pieces, self._begins, strict=True):
            _put(as_pixels(piece), begin, as_pixels(y))
        return y

    def backward(self, dy: Array) -> list[Array]:
        """See :class:`hpcdl.nn.ops.Concatenation`."""
        pieces = [allocate((len(dy), *shape), dy.dtype) for shape in self._shapes]
        for piece, begin in zip(pieces, self._begins, strict=True):
            _take(as_pixels(dy), begin, as_pixels(piece))
        return pieces


@njit(nogil=True, cache=True)
def _put(piece: Any, begin: int, whole: Any) -> None:
    pixels, channels = piece.shape
    item, zero = piece.itemsize, piece.dtype.type(0)
    for i in range(pixels):
        to = whole.ctypes.data + (i * whole.shape[1] + begin) * item
        copy(piece.ctypes.data + i * channels * item, to, channels, zero)


@njit(nogil=True, cache=True)
def _take(whole: Any, begin: int, piece: Any) -> None:
    pixels, channels = piece.shape
    item, zero = piece.itemsize, piece.dtype.type(0)
    for i in range(pixels):
        source = whole.ctypes.data + (i * whole.shape[1] + begin) * item
        copy(source, piece.ctypes.data + i * channels * item, channels, zero)
