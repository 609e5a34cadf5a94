"""Maximum pooling: a loop over the pixels of a window, vectorised over channels."""

from __future__ import annotations

import numpy as np

from hpcdl.compiled import njit
from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import Pair, WindowGeometry
from hpcdl.nn.kernels.numpy.activation_pool import allocate
from hpcdl.nn.threads import parallel_ranges

MAX_PIXELS = 256
"""Largest number of pixels in a window; a byte stores the index of the maximum."""


class MaxPooling:
    """Maximum of each window; stores the index of the first maximum in a byte. NaN is larger than all numbers."""

    def __init__(self, geometry: WindowGeometry) -> None:
        self._geometry = geometry
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        self._saved = ()
        geometry = self._geometry
        y = allocate((len(x), *geometry.output), x.dtype)
        chosen = allocate(y.shape, "uint8")
        window = (geometry.kernel, geometry.stride, geometry.padding)
        parallel_ranges(len(x), lambda i, j: _largest(x[i:j], *window, y[i:j], chosen[i:j]), elements=x.size)
        self._saved = (chosen,)
        return y

    def backward(self, dy: Array) -> Array:
        geometry = self._geometry
        (chosen,), self._saved = self._saved, ()
        dx = allocate((len(dy), *geometry.image), dy.dtype)
        window = (geometry.kernel, geometry.stride, geometry.padding)
        parallel_ranges(
            len(dy), lambda i, j: _spread_to_largest(dy[i:j], chosen[i:j], *window, dx[i:j]), elements=dx.size
        )
        return dx


@njit(nogil=True, cache=True)
def _inside(place: int, stride: int, padding: int, kernel: int, size: int) -> tuple[int, int, int]:
    """Return the window's first pixel, and begin and end of its offsets that lie on the image."""
    begin = place * stride - padding
    return begin, max(-begin, 0), min(kernel, size - begin)


@njit(nogil=True, cache=True)
def _largest(x: Array, kernel: Pair, stride: Pair, padding: Pair, y: Array, chosen: Array) -> None:
    _, height, width, channels = x.shape
    images, rows, columns, _ = y.shape
    for n in range(images):
        for p in range(rows):
            top, first, last = _inside(p, stride[0], padding[0], kernel[0], height)
            for q in range(columns):
                left, begin, end = _inside(q, stride[1], padding[1], kernel[1], width)
                best, index = y[n, p, q], chosen[n, p, q]
                number = np.uint8(first * kernel[1] + begin)
                for c in range(channels):
                    best[c] = x[n, top + first, left + begin, c]
                    index[c] = number
                for r in range(first, last):
                    for s in range(begin, end):
                        number = np.uint8(r * kernel[1] + s)
                        pixel = x[n, top + r, left + s]
                        for c in range(channels):
                            # comparisons with NaN are False: "not <=" takes a NaN, "best == best" then keeps it
                            is_larger = not pixel[c] <= best[c] and best[c] == best[c]
                            index[c] = number if is_larger else index[c]
                            best[c] = pixel[c] if is_larger else best[c]


@njit(nogil=True, cache=True)
def _spread_to_largest(dy: Array, chosen: Array, kernel: Pair, stride: Pair, padding: Pair, dx: Array) -> None:
    _, height, width, channels = dx.shape
    images, rows, columns, _ = dy.shape
    zero = dy.dtype.type(0)
    for n in range(images):
        dx[n] = 0
        for p in range(rows):
            top, first, last = _inside(p, stride[0], padding[0], kernel[0], height)
            for q in range(columns):
                left, begin, end = _inside(q, stride[1], padding[1], kernel[1], width)
                gradient, index = dy[n, p, q], chosen[n, p, q]
                for r in range(first, last):
                    for s in range(begin, end):
                        number = np.uint8(r * kernel[1] + s)
                        pixel = dx[n, top + r, left + s]
                        for c in range(channels):
                            pixel[c] += gradient[c] if index[c] == number else zero
