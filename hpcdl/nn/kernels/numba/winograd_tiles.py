"""Winograd convolution, steps on rows of tiles: transforms, products of tiles, sums of overlapping tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hpcdl.nn.kernels.numba.tile import VECTORS, divide_rows, tile
from hpcdl.nn.kernels.numba.toom_cook import SIZE, filter_tile, input_gradient_tile, input_tile
from hpcdl.nn.kernels.numba.vectors import lanes


@njit(nogil=True, cache=True)
def transpose(source: Any, to: Any) -> None:
    """Transpose a matrix, in blocks that stay in the cache."""
    rows, columns = source.shape
    for i in range(0, rows, 32):
        for j in range(0, columns, 32):
            for b in range(j, min(j + 32, columns)):
                for a in range(i, min(i + 32, rows)):
                    to[b, a] = source[a, b]


@njit(nogil=True, cache=True)
def transform_filters(taps: int, weight: Any, row: int, column: int, term: int, outputs: int, u: Any) -> None:
    """Fill u (36, panels, terms, width) with G g G^T; in ``weight``, terms are ``term`` elements apart."""
    _, panels, terms, width = u.shape
    item, zero = u.itemsize, u.dtype.type(0)
    distance = panels * terms * width
    if outputs % width:
        u[:, panels - 1] = 0
    for panel in range(panels):
        for t in range(terms):
            filter_tile(
                taps, weight.ctypes.data + (t * term + panel * width) * item, row, column,
                u.ctypes.data + (panel * terms + t) * width * item, SIZE * distance, distance,
                min(width, outputs - panel * width), zero,
            )  # fmt: skip


@njit(nogil=True, cache=True)
def copy_region(image: Any, channel: int, top: int, left: int, strip: Any) -> None:
    """Copy the region of an image at (top, left), from ``channel`` on, with zeros outside the image."""
    height, width, _ = image.shape
    for i in range(strip.shape[0]):
        h = top + i
        if h < 0 or h >= height:
            strip[i] = 0
            continue
        first, last = max(-left, 0), min(width - left, strip.shape[1])
        strip[i, :first] = 0
        strip[i, last:] = 0
        for j in range(first, last):
            source, to = image[h, left + j, channel : channel + strip.shape[2]], strip[i, j]
            for c in range(strip.shape[2]):
                to[c] = source[c]


@njit(nogil=True, cache=True)
def transform_inputs(strip: Any, step: int, across: int, first: int, v: Any) -> None:
    """Transform a row of input tiles to v (36, tiles, C), from tile ``first`` on."""
    channels, item, zero = strip.shape[2], strip.itemsize, strip.dtype.type(0)
    distance = v.shape[1] * channels
    for t in range(across):
        input_tile(
            strip.ctypes.data + t * step * channels * item, strip.shape[1] * channels, channels,
            v.ctypes.data + (first + t) * channels * item, SIZE * distance, distance, channels, zero,
        )  # fmt: skip


@njit(nogil=True, cache=True)
def multiply(left: Any, u: Any, tiles: int, right: Any) -> None:
    """Set right (36, tiles, outputs) to left (36, tiles, terms) times u (36, panels, terms, width)."""
    _, panels, terms, width = u.shape
    outputs, item = right.shape[2], right.itemsize
    floor = right.dtype.type(-np.inf)
    zeros = np.zeros(width, right.dtype)
    pieces, size, larger = divide_rows(tiles)
    for point in range(len(u)):
        for panel in range(panels):
            t = 0
            for piece in range(pieces):
                rows = size + (piece < larger)
                tile(
                    rows, min(width, outputs - panel * width), 1, terms,
                    left[point, t].ctypes.data, terms, 0, 1, u[point, panel].ctypes.data, 0, width,
                    zeros.ctypes.data, 0, right[point, t].ctypes.data + panel * width * item, outputs, floor,
                )  # fmt: skip
                t += rows


@njit(nogil=True, cache=True)
def add_filter_products(v: Any, products: Any, tiles: int, du: Any) -> None:
    """Add products^T v, summed over tiles, to du (36, K, C)."""
    _, filters, channels = du.shape
    item = du.itemsize
    floor = du.dtype.type(-np.inf)
    width = VECTORS * lanes(floor)
    pieces, size, larger = divide_rows(filters)
    for point in range(len(du)):
        k = 0
        for piece in range(pieces):
            rows = size + (piece < larger)
            for c in range(0, channels, width):
                to = du[point, k].ctypes.data + c * item
                tile(
                    rows, min(width, channels - c), 1, tiles,
                    products[point].ctypes.data + k * item, 1, 0, filters,
                    v[point].ctypes.data + c * item, 0, channels, to, channels, to, channels, floor,
                )  # fmt: skip
            k += rows


@njit(nogil=True, cache=True)
def add_input_gradients(
    v: Any, first: int, step: int, across: int, strip: Any, dx: Any, channel: int, top: int, left: int
) -> None:
    """Sum the gradients of a row of overlapping tiles in ``strip`` and add them to one image's gradient."""
    channels, item, zero = strip.shape[2], strip.itemsize, strip.dtype.type(0)
    distance = v.shape[1] * channels
    strip[:] = 0
    for t in range(across):
        input_gradient_tile(
            v.ctypes.data + (first + t) * channels * item, SIZE * distance, distance,
            strip.ctypes.data + t * step * channels * item, strip.shape[1] * channels, channels, channels, zero,
        )  # fmt: skip
    height, width, _ = dx.shape
    for i in range(max(-top, 0), min(height - top, SIZE)):
        for j in range(max(-left, 0), min(width - left, strip.shape[1])):
            to, source = dx[top + i, left + j, channel : channel + channels], strip[i, j]
            for c in range(channels):
                to[c] += source[c]
