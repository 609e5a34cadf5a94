"""Maximum pooling: a loop over the pixels of a window, vectorised over channels."""

from typing import Final

import numpy as np
from numba import prange

from hpcdl.compiled import njit
from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import Pair, WindowGeometry
from hpcdl.nn.kernels.numba.parts import bounds, channel_blocks, kernel
from hpcdl.nn.kernels.numpy.activation_pool import Op, allocate

MAX_PIXELS = 256
"""Largest number of pixels in a window; a byte stores the index of the maximum."""
WHOLE: Final = (0, -1)
"""Range of all blocks of channels."""


class MaxPooling(Op[WindowGeometry]):
    """Maximum of each window; stores the index of the first maximum in a byte. NaN is larger than all numbers."""

    def forward(self, x: Array) -> Array:
        self._saved = ()
        geometry = self._geometry
        y = allocate((len(x), *geometry.output), x.dtype)
        chosen = allocate(y.shape, "uint8")
        window = (geometry.kernel, geometry.stride, geometry.padding)
        blocks = channel_blocks(len(x), x.shape[-1])
        parts = bounds(len(x) * blocks, x.size)
        kernel(parts, _largest, _largest_in_parts)(x, *window, y, chosen, blocks)
        self._saved = (chosen,)
        return y

    def backward(self, dy: Array) -> Array:
        geometry = self._geometry
        (chosen,), self._saved = self._saved, ()
        dx = allocate((len(dy), *geometry.image), dy.dtype)
        window = (geometry.kernel, geometry.stride, geometry.padding)
        blocks = channel_blocks(len(dx), dx.shape[-1])
        parts = bounds(len(dx) * blocks, dx.size)
        kernel(parts, _spread_to_largest, _spread_to_largest_in_parts)(dy, chosen, *window, dx, blocks)
        return dx


@njit(nogil=True, cache=True)
def _inside(position: int, stride: int, padding: int, kernel: int, size: int) -> tuple[int, int, int]:
    """Return the window's first pixel, and begin and end of its offsets that lie on the image."""
    begin = position * stride - padding
    return begin, max(-begin, 0), min(kernel, size - begin)


@njit(nogil=True, cache=True)
def _largest(
    x: Array, kernel: Pair, stride: Pair, padding: Pair, y: Array, chosen: Array, blocks: int, span: Pair = WHOLE
) -> None:
    """Pool the blocks of channels ``span`` of all images, counted through the images."""
    images, height, width, channels = x.shape
    _, rows, columns, _ = y.shape
    indices = np.empty(channels, np.int32)
    for item in range(span[0], images * blocks if span[1] < 0 else span[1]):
        n, c0, c1 = item // blocks, channels * (item % blocks) // blocks, channels * (item % blocks + 1) // blocks
        number, where = np.int32(0), indices[: c1 - c0]
        for p in range(rows):
            top, first, last = _inside(p, stride[0], padding[0], kernel[0], height)
            for q in range(columns):
                left, begin, end = _inside(q, stride[1], padding[1], kernel[1], width)
                best, index = y[n, p, q, c0:c1], chosen[n, p, q, c0:c1]
                number = np.int32(first * kernel[1] + begin)
                pixel = x[n, top + first, left + begin, c0:c1]
                # loops of one type of number are vectorised: indices have the width of float32 until the end
                for c in range(len(where)):
                    best[c] = pixel[c]
                for c in range(len(where)):
                    where[c] = number
                for r in range(first, last):
                    for s in range(begin, end):
                        number = np.int32(r * kernel[1] + s)
                        pixel = x[n, top + r, left + s, c0:c1]
                        for c in range(len(where)):
                            value, most = pixel[c], best[c]
                            # a NaN is larger than all numbers, and the first one stays
                            is_larger = (value > most) | (np.isnan(value) & (not np.isnan(most)))
                            where[c] = number if is_larger else where[c]
                            best[c] = value if is_larger else most
                for c in range(len(where)):
                    index[c] = np.uint8(where[c])


@njit(nogil=True, cache=True, parallel=True)
def _largest_in_parts(
    parts: Array, x: Array, kernel: Pair, stride: Pair, padding: Pair, y: Array, chosen: Array, blocks: int
) -> None:
    for part in prange(len(parts) - 1):
        _largest(x, kernel, stride, padding, y, chosen, blocks, (parts[part], parts[part + 1]))


@njit(nogil=True, cache=True)
def _spread_to_largest(
    dy: Array, chosen: Array, kernel: Pair, stride: Pair, padding: Pair, dx: Array, blocks: int, span: Pair = WHOLE
) -> None:
    """Fill the blocks of channels ``span`` of the input gradient, counted through the images."""
    images, height, width, channels = dx.shape
    _, rows, columns, _ = dy.shape
    zero = dy.dtype.type(0)
    for item in range(span[0], images * blocks if span[1] < 0 else span[1]):
        n, c0, c1 = item // blocks, channels * (item % blocks) // blocks, channels * (item % blocks + 1) // blocks
        dx[n, :, :, c0:c1] = 0
        for p in range(rows):
            top, first, last = _inside(p, stride[0], padding[0], kernel[0], height)
            for q in range(columns):
                left, begin, end = _inside(q, stride[1], padding[1], kernel[1], width)
                gradient, index = dy[n, p, q, c0:c1], chosen[n, p, q, c0:c1]
                for r in range(first, last):
                    for s in range(begin, end):
                        number = np.uint8(r * kernel[1] + s)
                        pixel = dx[n, top + r, left + s, c0:c1]
                        for c in range(len(pixel)):
                            pixel[c] += gradient[c] if index[c] == number else zero


@njit(nogil=True, cache=True, parallel=True)
def _spread_to_largest_in_parts(
    parts: Array, dy: Array, chosen: Array, kernel: Pair, stride: Pair, padding: Pair, dx: Array, blocks: int
) -> None:
    for part in prange(len(parts) - 1):
        _spread_to_largest(dy, chosen, kernel, stride, padding, dx, blocks, (parts[part], parts[part + 1]))
