"""Winograd convolution: 3x3 taps with a quarter of the products, 5x5 with little more than a third."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import njit

from hpcdl.nn.kernels.numba.convolution import add_up
from hpcdl.nn.kernels.numba.packing import panels
from hpcdl.nn.kernels.numba.tile import ROWS, VECTORS, evenly, tile
from hpcdl.nn.kernels.numba.toom_cook import (
    SIZE,
    filter_gradient_tile,
    filter_tile,
    input_gradient_tile,
    input_tile,
    output_gradient_tile,
    output_tile,
)
from hpcdl.nn.kernels.numba.vectors import lanes
from hpcdl.nn.kernels.numpy.memory import lend
from hpcdl.nn.threads import in_parts

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import ConvolutionGeometry

PRODUCTS: Final = SIZE * SIZE

STRIP_BYTES: Final = 3 << 19
"""Transformed tiles worked on at a time, of inputs and outputs together, where channels are few."""

LEAST_TILES: Final = 8 * ROWS
"""At least so many tiles at a time, since each time all transformed filters are read."""


LEAST_CHANNELS: Final = 16
"""With fewer, a tile's transforms take longer than the products they save."""


class Winograd:
    """Convolution with 3x3 or 5x5 taps and stride 1 (Lavin & Gray 2015, arXiv 1509.09308).

        V = B^T x B            per tile of 6x6 inputs, neighbours 7 - taps apart
        U = G weight G^T       per filter and channel
        P = V U                36 products of (tiles, C) with (C, K)
        y = A^T P A

    Each line's gradient is the same line with its matrix transposed: dP = A dy A^T, dU = V^T dP, dV = dP U^T,
    dweight = G^T dU G, dx = B dV B^T added up where tiles overlap. V is computed again for the backward,
    because to keep it would take 36 / (7 - taps)^2 times the input's memory.
    """

    def __init__(self, geometry: ConvolutionGeometry) -> None:
        self._geometry = geometry
        self._kept: tuple[Array, ...] = ()
        self._taps = geometry.kernel[0]
        self._step = SIZE + 1 - self._taps
        self._channels, self._filters = (
            size // geometry.groups for size in (geometry.image[2], geometry.output[2])
        )
        rows, columns, _ = geometry.output
        self._across = -(-columns // self._step)
        self._down = -(-rows // self._step)
        item = np.dtype(geometry.dtype).itemsize
        tiles = max(STRIP_BYTES // (PRODUCTS * item * (self._channels + self._filters)), LEAST_TILES)
        self._rows_at_once = max(tiles // self._across, 1)

    @staticmethod
    def suits(geometry: ConvolutionGeometry) -> bool:
        """Whether it is possible, and pays: transforms cost as much as products with few channels."""
        channels, filters = geometry.image[2], geometry.output[2]
        return (
            geometry.kernel in {(3, 3), (5, 5)}
            and geometry.stride == (1, 1)
            and max(geometry.padding) < geometry.kernel[0]
            and min(channels, filters) // geometry.groups >= LEAST_CHANNELS
        )

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        self._kept = ()
        geometry, taps, channels, filters = self._geometry, self._taps, self._channels, self._filters
        y = lend((len(x), *geometry.output), x.dtype)
        start = np.zeros(geometry.output[2], x.dtype) if bias is None else bias
        turned = lend((taps * taps * channels, filters), x.dtype)
        u = lend((PRODUCTS, *panels(channels, filters, x)), x.dtype)
        floor = x.dtype.type(0 if geometry.relu else -math.inf)
        for group in range(geometry.groups):
            k = slice(group * filters, (group + 1) * filters)
            _turn(weight[k].reshape(filters, -1), turned)
            _transform_filters(taps, turned, filters * channels * taps, filters * channels, filters, filters, u)

            def part(i: int, j: int, group: int = group, k: slice = k) -> None:
                results = lend((self._step, self._step, filters), x.dtype)
                _forward(
                    x[i:j], group * channels, u, start[k], y[i:j], k.start, *self._rooms(x[i:j]), results, taps,
                    geometry.padding, floor,
                )  # fmt: skip

            in_parts(len(x), part, numbers=x.size)
        self._kept = (x, y if geometry.relu else lend((0, *geometry.output), x.dtype))
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, wanted: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        geometry, taps, channels, filters = self._geometry, self._taps, self._channels, self._filters
        (x, y), self._kept = self._kept, ()
        dx = lend(x.shape if wanted else (0, *x.shape[1:]), x.dtype)
        u = lend((PRODUCTS if wanted else 0, *panels(filters, channels, x)), x.dtype)
        for group in range(geometry.groups):
            k = slice(group * filters, (group + 1) * filters)
            if wanted:
                _transform_filters(taps, weight[k], channels * taps, channels, channels * taps**2, channels, u)

            def part(i: int, j: int, group: int = group, k: slice = k) -> tuple[Array, Array]:
                dw = dweight[k] if i == 0 else lend(dweight[k].shape, x.dtype)
                db = np.empty(0 if dbias is None else filters, x.dtype)
                du = lend((PRODUCTS, filters, channels), x.dtype)
                gradients = lend((self._step, self._across * self._step, filters), x.dtype)
                strip, v, products = self._rooms(x[i:j])
                if group == 0:
                    dx[i:j] = 0
                _backward(
                    x[i:j], group * channels, y[i:j], dy[i:j], k.start, u, du, db, dx[i:j], dw, strip, gradients,
                    v, products, taps, geometry.padding,
                )  # fmt: skip
                return dw, db

            add_up(in_parts(len(dy), part, numbers=dy.size), dweight[k], None if dbias is None else dbias[k])
        return dx if wanted else None

    def _rooms(self, x: Array) -> tuple[Array, Array, Array]:
        """Memory for the inputs under a row of tiles, for V and for P."""
        tiles = max(min(self._rows_at_once, len(x) * self._down), 1) * self._across
        strip = lend((SIZE, (self._across - 1) * self._step + SIZE, self._channels), x.dtype)
        v = lend((PRODUCTS, tiles, self._channels), x.dtype)
        return strip, v, lend((PRODUCTS, tiles, self._filters), x.dtype)


@njit(nogil=True, cache=True)
def _turn(source: Any, to: Any) -> None:
    """Transpose a matrix, in blocks that stay in the cache."""
    rows, columns = source.shape
    for i in range(0, rows, 32):
        for j in range(0, columns, 32):
            for b in range(j, min(j + 32, columns)):
                for a in range(i, min(i + 32, rows)):
                    to[b, a] = source[a, b]


@njit(nogil=True, cache=True)
def _transform_filters(taps: int, weight: Any, row: int, column: int, term: int, outputs: int, u: Any) -> None:
    """Fill u (36, panels, terms, width) with G g G^T; ``weight`` has outputs in a row, terms ``term`` apart."""
    _, panels, terms, width = u.shape
    item, zero = u.itemsize, u.dtype.type(0)
    apart = panels * terms * width
    if outputs % width:
        u[:, panels - 1] = 0
    for panel in range(panels):
        for t in range(terms):
            filter_tile(
                taps, weight.ctypes.data + (t * term + panel * width) * item, row, column,
                u.ctypes.data + (panel * terms + t) * width * item, SIZE * apart, apart,
                min(width, outputs - panel * width), zero,
            )  # fmt: skip


@njit(nogil=True, cache=True)
def _fill(image: Any, channel: int, top: int, left: int, strip: Any) -> None:
    """Copy the part of an image that begins at (top, left), channels from ``channel`` on, zeros outside it."""
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
def _transform_inputs(strip: Any, step: int, across: int, first: int, v: Any) -> None:
    """Fill v (36, tiles, C) from tile ``first`` on."""
    channels, item, zero = strip.shape[2], strip.itemsize, strip.dtype.type(0)
    apart = v.shape[1] * channels
    for t in range(across):
        input_tile(
            strip.ctypes.data + t * step * channels * item, strip.shape[1] * channels, channels,
            v.ctypes.data + (first + t) * channels * item, SIZE * apart, apart, channels, zero,
        )  # fmt: skip


@njit(nogil=True, cache=True)
def _multiply(left: Any, u: Any, tiles: int, right: Any) -> None:
    """Right (36, tiles, outputs) = left (36, tiles, terms) times u (36, panels, terms, width)."""
    _, panels, terms, width = u.shape
    outputs, item = right.shape[2], right.itemsize
    floor = right.dtype.type(-np.inf)
    zeros = np.zeros(width, right.dtype)
    pieces, size, larger = evenly(tiles)
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
def _forward(
    x: Any, channel: int, u: Any, bias: Any, y: Any, k: int, strip: Any, v: Any, products: Any, results: Any,
    taps: int, padding: Any, floor: Any,
) -> None:  # fmt: skip
    step = SIZE + 1 - taps
    _, rows, columns, _ = y.shape
    filters = products.shape[2]
    down, across = -(-rows // step), -(-columns // step)
    at_once = v.shape[1] // across
    apart = products.shape[1] * filters
    for begin in range(0, len(x) * down, at_once):
        lines = min(at_once, len(x) * down - begin)
        for line in range(lines):
            n, p = (begin + line) // down, (begin + line) % down * step
            _fill(x[n], channel, p - padding[0], -padding[1], strip)
            _transform_inputs(strip, step, across, line * across, v)
        _multiply(v, u, lines * across, products)
        for line in range(lines):
            n, p = (begin + line) // down, (begin + line) % down * step
            for t in range(across):
                output_tile(
                    taps, products[0, line * across + t].ctypes.data, SIZE * apart, apart,
                    results.ctypes.data, step * filters, filters, filters, floor,
                )  # fmt: skip
                for i in range(min(step, rows - p)):
                    for j in range(min(step, columns - t * step)):
                        out, result = y[n, p + i, t * step + j, k : k + filters], results[i, j]
                        for f in range(filters):
                            value = result[f] + bias[f]
                            out[f] = max(value, floor)


@njit(nogil=True, cache=True)
def _backward(
    x: Any, channel: int, y: Any, dy: Any, k: int, u: Any, du: Any, dbias: Any, dx: Any, dweight: Any, strip: Any,
    gradients: Any, v: Any, products: Any, taps: int, padding: Any,
) -> None:  # fmt: skip
    step = SIZE + 1 - taps
    _, rows, columns, _ = dy.shape
    _, filters, channels = du.shape
    item, zero = x.itemsize, x.dtype.type(0)
    down, across = -(-rows // step), -(-columns // step)
    at_once = v.shape[1] // across
    apart = products.shape[1] * filters
    du[:] = 0
    dbias[:] = 0
    for begin in range(0, len(x) * down, at_once):
        lines = min(at_once, len(x) * down - begin)
        for line in range(lines):
            n, p = (begin + line) // down, (begin + line) % down * step
            _fill(x[n], channel, p - padding[0], -padding[1], strip)
            _transform_inputs(strip, step, across, line * across, v)
            _fill(dy[n], k, p, 0, gradients)
            if len(y):
                for i in range(min(step, rows - p)):
                    for j in range(columns):
                        output, gradient = y[n, p + i, j, k : k + filters], gradients[i, j]
                        for f in range(filters):
                            gradient[f] = gradient[f] if output[f] > zero else zero
            if dbias.size:
                for i in range(step):
                    for j in range(columns):
                        for f in range(filters):
                            dbias[f] += gradients[i, j, f]
            for t in range(across):
                output_gradient_tile(
                    taps, gradients.ctypes.data + t * step * filters * item, gradients.shape[1] * filters, filters,
                    products[0, line * across + t].ctypes.data, SIZE * apart, apart, filters, zero,
                )  # fmt: skip
        _add_filter_products(v, products, lines * across, du)
        if len(dx):
            _multiply(products, u, lines * across, v)
            for line in range(lines):
                n, p = (begin + line) // down, (begin + line) % down * step
                _add_inputs(v, line * across, step, across, strip, dx[n], channel, p - padding[0], -padding[1])
    far = filters * channels
    for f in range(filters):
        filter_gradient_tile(
            taps, du[0, f].ctypes.data, SIZE * far, far, dweight[f].ctypes.data, taps * channels, channels,
            channels, zero,
        )  # fmt: skip


@njit(nogil=True, cache=True)
def _add_filter_products(v: Any, products: Any, tiles: int, du: Any) -> None:
    """Du (36, K, C) += products^T v over the tiles."""
    _, filters, channels = du.shape
    item = du.itemsize
    floor = du.dtype.type(-np.inf)
    width = VECTORS * lanes(floor)
    pieces, size, larger = evenly(filters)
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
def _add_inputs(
    v: Any, first: int, step: int, across: int, strip: Any, dx: Any, channel: int, top: int, left: int
) -> None:
    """Add up a row of tiles in ``strip``, then add the strip to one image's gradient."""
    channels, item, zero = strip.shape[2], strip.itemsize, strip.dtype.type(0)
    apart = v.shape[1] * channels
    strip[:] = 0
    for t in range(across):
        input_gradient_tile(
            v.ctypes.data + (first + t) * channels * item, SIZE * apart, apart,
            strip.ctypes.data + t * step * channels * item, strip.shape[1] * channels, channels, channels, zero,
        )  # fmt: skip
    height, width, _ = dx.shape
    for i in range(max(-top, 0), min(height - top, SIZE)):
        for j in range(max(-left, 0), min(width - left, strip.shape[1])):
            to, source = dx[top + i, left + j, channel : channel + channels], strip[i, j]
            for c in range(channels):
                to[c] += source[c]
