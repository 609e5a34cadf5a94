"""Gradients of a convolution, one image at a time: two matrix products in register tiles."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

from hpcdl.nn.kernels.numba.packing import copy_to_frame
from hpcdl.nn.kernels.numba.tile import VECTORS, divide_rows, tile
from hpcdl.nn.kernels.numba.vectors import lanes

CACHED_BYTES: Final = 1 << 19
"""Bytes that the weight gradient reads repeatedly; they fit a core's second-level cache."""


@njit(nogil=True, cache=True)
def differentiate(
    x: Any, y: Any, dy: Any, packed: Any, dweight: Any, partial: Any, dbias: Any, dx: Any, frame: Any, dz: Any,
    stride: Any, padding: Any, margin: Any,
) -> None:  # fmt: skip
    """Overwrite ``dweight`` (groups, K, R, S, C); also ``dbias`` and ``dx`` unless they are empty.

    ``packed`` are the weights from :func:`hpcdl.nn.kernels.numba.packing.pack_reversed`. ``partial`` (groups, R,
    S C, K) is for a transposed weight gradient, ``frame`` and ``dz`` are for images and gradients with a border,
    ``y`` is the output of a ReLU. Each is empty if not used.
    """
    groups, filters, _, _, channels = dweight.shape
    frame[:] = 0
    dz[:] = 0
    dweight[:] = 0
    partial[:] = 0
    dbias[:] = 0
    for n in range(len(dy)):
        for g in range(groups):
            image, gradient, corner = x[n], dy[n], (0, 0)
            if frame.size:
                copy_to_frame(x[n], g * channels, frame, padding[0], padding[1])
                image = frame
            if dz.size:
                _put_gradient(dy[n], y[n] if len(y) else dy[n], g * filters, dz, margin, len(y) > 0)
                gradient, corner = dz, margin
            if dbias.size:
                _add_pixels(gradient, corner, dy.shape[1:3], dbias[g * filters : (g + 1) * filters])
            if partial.size:
                _weight_gradient_transposed(image, gradient, corner, partial[g], dy.shape[1:3], stride, channels)
            else:
                _weight_gradient(image, gradient, corner, dweight[g], dy.shape[1:3], stride)
            if len(dx):
                _input_gradient(gradient, packed[:, :, g], dx[n], g * channels, dweight.shape, padding, margin)
    if partial.size:
        for g in range(groups):
            for k in range(filters):
                for r in range(partial.shape[1]):
                    for j in range(partial.shape[2]):
                        dweight[g, k, r, j // channels, j % channels] = partial[g, r, j, k]


@njit(nogil=True, cache=True)
def _put_gradient(dy: Any, y: Any, k: int, dz: Any, margin: Any, relu: bool) -> None:
    """Copy the gradient of one image into the frame, with zeros where the ReLU's output was not positive."""
    rows, columns, _ = dy.shape
    zero = dz.dtype.type(0)
    for p in range(rows):
        for q in range(columns):
            source, to = dy[p, q, k : k + dz.shape[2]], dz[margin[0] + p, margin[1] + q]
            if relu:
                output = y[p, q, k : k + dz.shape[2]]
                for j in range(dz.shape[2]):
                    to[j] = source[j] if output[j] > zero else zero
            else:
                for j in range(dz.shape[2]):
                    to[j] = source[j]


@njit(nogil=True, cache=True)
def _add_pixels(gradient: Any, corner: Any, output: Any, dbias: Any) -> None:
    total = np.zeros_like(dbias)
    for p in range(output[0]):
        for q in range(output[1]):
            pixel = gradient[corner[0] + p, corner[1] + q]
            for j in range(len(dbias)):
                total[j] += pixel[j]
    dbias += total


@njit(nogil=True, cache=True)
def _cached_rows(image: Any, gradient: Any, stride: Any) -> Any:
    """Return the number of gradient rows that fit the cache together with their image rows."""
    row = (stride[0] * image.shape[1] * image.shape[2] + gradient.shape[1] * gradient.shape[2]) * image.itemsize
    return max(CACHED_BYTES // row, 1)


@njit(nogil=True, cache=True)
def _weight_gradient(image: Any, gradient: Any, corner: Any, dweight: Any, output: Any, stride: Any) -> None:
    """Add one image's contribution to dweight (K, R, S, C): tile rows are filters, tile columns a window's row."""
    filters, taps, _, channels = dweight.shape
    run, wide, item = dweight.shape[2] * channels, image.shape[1], image.itemsize
    floor = dweight.dtype.type(-np.inf)
    width = VECTORS * lanes(floor)
    pieces, size, larger = divide_rows(filters)
    step = _cached_rows(image, gradient, stride)
    for p in range(0, output[0], step):
        k = 0
        for piece in range(pieces):
            height = size + (piece < larger)
            for r in range(taps):
                for j in range(0, run, width):
                    c = dweight.ctypes.data + ((k * taps + r) * run + j) * item
                    tile(
                        height, min(width, run - j), min(step, output[0] - p), output[1],
                        gradient[corner[0] + p, corner[1]].ctypes.data + k * item,
                        1, gradient.shape[1] * gradient.shape[2], gradient.shape[2],
                        image.ctypes.data + ((p * stride[0] + r) * wide * channels + j) * item,
                        stride[0] * wide * channels, stride[1] * channels,
                        c, taps * run, c, taps * run, floor,
                    )  # fmt: skip
            k += height


@njit(nogil=True, cache=True)
def _weight_gradient_transposed(
    image: Any, gradient: Any, corner: Any, partial: Any, output: Any, stride: Any, channels: int
) -> None:
    """Add one image's contribution to partial (R, S C, K): tile rows are a window's row, tile columns filters.

    For images of three channels, where :func:`_weight_gradient` would leave registers half empty.
    """
    taps, run, filters = partial.shape
    wide, item = image.shape[1], image.itemsize
    floor = partial.dtype.type(-np.inf)
    width = VECTORS * lanes(floor)
    pieces, size, larger = divide_rows(run)
    step = _cached_rows(image, gradient, stride)
    for p in range(0, output[0], step):
        for k in range(0, filters, width):
            for r in range(taps):
                j = 0
                for piece in range(pieces):
                    height = size + (piece < larger)
                    c = partial.ctypes.data + ((r * run + j) * filters + k) * item
                    tile(
                        height, min(width, filters - k), min(step, output[0] - p), output[1],
                        image.ctypes.data + ((p * stride[0] + r) * wide * channels + j) * item,
                        1, stride[0] * wide * channels, stride[1] * channels,
                        gradient[corner[0] + p, corner[1]].ctypes.data + k * item,
                        gradient.shape[1] * gradient.shape[2], gradient.shape[2],
                        c, filters, c, filters, floor,
                    )  # fmt: skip
                    j += height


@njit(nogil=True, cache=True)
def _input_gradient(
    gradient: Any, packed: Any, dx: Any, channel: int, weights: Any, padding: Any, margin: Any
) -> None:
    """Overwrite one image's gradient, from channel ``channel`` on; packed is (a, b, panels, terms, width)."""
    height, width, total = dx.shape
    vertical, horizontal, count, _, many = packed.shape
    _, filters, kernel_rows, kernel_columns, channels = weights
    wide, item = gradient.shape[1], dx.itemsize
    floor = dx.dtype.type(-np.inf)
    zeros = np.zeros(many, dx.dtype)
    for a in range(vertical):
        taps = max(-(-(kernel_rows - a) // vertical), 0)
        for b in range(horizontal):
            others = max(-(-(kernel_columns - b) // horizontal), 0)
            begin = (b - padding[1]) % horizontal
            if begin >= width:
                continue
            pieces, size, larger = divide_rows((width - 1 - begin) // horizontal + 1)
            for panel in range(count):
                for h in range((a - padding[0]) % vertical, height, vertical):
                    t = (h + padding[0]) // vertical + margin[0] - (taps - 1)
                    w = begin
                    for piece in range(pieces):
                        rows = size + (piece < larger)
                        u = (w + padding[1]) // horizontal + margin[1] - (others - 1)
                        tile(
                            rows, min(many, channels - panel * many), taps, others * filters,
                            gradient.ctypes.data + (t * wide + u) * filters * item, filters, wide * filters, 1,
                            packed[a, b, panel].ctypes.data, others * filters * many, many,
                            zeros.ctypes.data, 0,
                            dx.ctypes.data + ((h * width + w) * total + channel + panel * many) * item,
                            horizontal * total, floor,
                        )  # fmt: skip
                        w += rows * horizontal
