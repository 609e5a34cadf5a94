"""Pooling, a window's pixels one after another, all channels side by side in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from hpcdl.nn.kernels.numpy.memory import lend
from hpcdl.nn.kernels.numpy.pooling import shares
from hpcdl.nn.threads import in_parts

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Blob, PoolingGeometry

MOST_PIXELS = 256
"""Pixels of a window that a byte can tell apart."""


class MaxPooling:
    """Notes, in a byte each, which pixel of its window was the first of the largest; a NaN is larger than all."""

    def __init__(self, geometry: PoolingGeometry) -> None:
        self._geometry = geometry
        self._kept: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._kept = ()
        geometry = self._geometry
        y = lend((len(x), *geometry.output), x.dtype)
        chosen = lend(y.shape, "uint8")
        window = (geometry.kernel, geometry.stride, geometry.padding)
        in_parts(len(x), lambda i, j: _largest(x[i:j], *window, y[i:j], chosen[i:j]), numbers=x.size)
        self._kept = (chosen,)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        geometry = self._geometry
        (chosen,), self._kept = self._kept, ()
        dx = lend((len(dy), *geometry.image), dy.dtype)
        window = (geometry.kernel, geometry.stride, geometry.padding)
        in_parts(len(dy), lambda i, j: _spread_to_largest(dy[i:j], chosen[i:j], *window, dx[i:j]), numbers=dx.size)
        return dx


class AveragePooling:
    """The sum of each window divided by its size clipped to the padded image, as Caffe does."""

    def __init__(self, geometry: PoolingGeometry) -> None:
        self._geometry = geometry
        self._share = shares(geometry)

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        geometry = self._geometry
        y = lend((len(x), *geometry.output), x.dtype)
        window = (geometry.kernel, geometry.stride, geometry.padding)
        in_parts(len(x), lambda i, j: _average(x[i:j], *window, self._share, y[i:j]), numbers=x.size)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        geometry = self._geometry
        dx = lend((len(dy), *geometry.image), dy.dtype)
        window = (geometry.kernel, geometry.stride, geometry.padding)
        in_parts(len(dy), lambda i, j: _spread(dy[i:j], *window, self._share, dx[i:j]), numbers=dx.size)
        return dx


class GlobalAverage:
    """The mean of each channel over the image."""

    def __init__(self, geometry: Blob) -> None:
        self._shape = geometry.shape
        self._pixels = geometry.shape[0] * geometry.shape[1]

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        y = lend((len(x), self._shape[2]), x.dtype)
        _mean(x.reshape(len(x), self._pixels, -1) if len(x) else x.reshape(0, 1, 1), y)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        dx = lend((len(dy), *self._shape), dy.dtype)
        np.divide(dy[:, np.newaxis, np.newaxis], self._pixels, out=dx)
        return dx


@njit(nogil=True, cache=True)
def _mean(x: Any, y: Any) -> None:
    images, pixels, channels = x.shape
    share = y.dtype.type(1 / pixels)
    for n in range(images):
        total = y[n]
        total[:] = 0
        for i in range(pixels):
            for c in range(channels):
                total[c] += x[n, i, c]
        for c in range(channels):
            total[c] *= share


@njit(nogil=True, cache=True)
def _inside(place: int, stride: int, padding: int, kernel: int, size: int) -> Any:
    """(first pixel under the window, first offset and end of offsets that lie on the image)."""
    begin = place * stride - padding
    return begin, max(-begin, 0), min(kernel, size - begin)


@njit(nogil=True, cache=True)
def _largest(x: Any, kernel: Any, stride: Any, padding: Any, y: Any, chosen: Any) -> None:
    _, height, width, channels = x.shape
    images, rows, columns, _ = y.shape
    for n in range(images):
        for p in range(rows):
            top, first, last = _inside(p, stride[0], padding[0], kernel[0], height)
            for q in range(columns):
                left, begin, end = _inside(q, stride[1], padding[1], kernel[1], width)
                best, which = y[n, p, q], chosen[n, p, q]
                number = np.uint8(first * kernel[1] + begin)
                for c in range(channels):
                    best[c] = x[n, top + first, left + begin, c]
                    which[c] = number
                for r in range(first, last):
                    for s in range(begin, end):
                        number = np.uint8(r * kernel[1] + s)
                        pixel = x[n, top + r, left + s]
                        for c in range(channels):
                            is_larger = not pixel[c] <= best[c] and best[c] == best[c]
                            which[c] = number if is_larger else which[c]
                            best[c] = pixel[c] if is_larger else best[c]


@njit(nogil=True, cache=True)
def _spread_to_largest(dy: Any, chosen: Any, kernel: Any, stride: Any, padding: Any, dx: Any) -> None:
    _, height, width, channels = dx.shape
    images, rows, columns, _ = dy.shape
    zero = dy.dtype.type(0)
    for n in range(images):
        dx[n] = 0
        for p in range(rows):
            top, first, last = _inside(p, stride[0], padding[0], kernel[0], height)
            for q in range(columns):
                left, begin, end = _inside(q, stride[1], padding[1], kernel[1], width)
                gradient, which = dy[n, p, q], chosen[n, p, q]
                for r in range(first, last):
                    for s in range(begin, end):
                        number = np.uint8(r * kernel[1] + s)
                        pixel = dx[n, top + r, left + s]
                        for c in range(channels):
                            pixel[c] += gradient[c] if which[c] == number else zero


@njit(nogil=True, cache=True)
def _average(x: Any, kernel: Any, stride: Any, padding: Any, share: Any, y: Any) -> None:
    _, height, width, channels = x.shape
    images, rows, columns, _ = y.shape
    for n in range(images):
        for p in range(rows):
            top, first, last = _inside(p, stride[0], padding[0], kernel[0], height)
            for q in range(columns):
                left, begin, end = _inside(q, stride[1], padding[1], kernel[1], width)
                total = y[n, p, q]
                total[:] = 0
                for r in range(first, last):
                    for s in range(begin, end):
                        for c in range(channels):
                            total[c] += x[n, top + r, left + s, c]
                for c in range(channels):
                    total[c] *= share[p, q]


@njit(nogil=True, cache=True)
def _spread(dy: Any, kernel: Any, stride: Any, padding: Any, share: Any, dx: Any) -> None:
    _, height, width, channels = dx.shape
    images, rows, columns, _ = dy.shape
    for n in range(images):
        dx[n] = 0
        for p in range(rows):
            top, first, last = _inside(p, stride[0], padding[0], kernel[0], height)
            for q in range(columns):
                left, begin, end = _inside(q, stride[1], padding[1], kernel[1], width)
                for r in range(first, last):
                    for s in range(begin, end):
                        pixel = dx[n, top + r, left + s]
                        for c in range(channels):
                            pixel[c] += dy[n, p, q, c] * share[p, q]
