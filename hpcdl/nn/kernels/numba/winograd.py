"""Winograd convolution: 1/4 of the products for 3x3 taps, 9/25 for 5x5 taps."""

import math
from typing import Final

import numpy as np
from numba import prange

from hpcdl.compiled import njit
from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Weights
from hpcdl.nn.geometry import Pair, WindowGeometry
from hpcdl.nn.kernels.numba.convolution import Arrays, add_parts
from hpcdl.nn.kernels.numba.parts import PRODUCTS as TILE_PRODUCTS
from hpcdl.nn.kernels.numba.parts import bounds, grid, number, share
from hpcdl.nn.kernels.numba.toom_cook import (
    SIZE,
    filter_gradient_tile,
    input_gradient_tile,
    output_gradient_tile,
    output_tile,
    transform_filters,
    transform_inputs,
)
from hpcdl.nn.kernels.numba.vectors import (
    REGISTER_BYTES,
    ROWS,
    VECTORS,
    Counts,
    copy_region,
    divide_rows,
    panels,
    rectify_region,
    tile,
)
from hpcdl.nn.kernels.numpy.activation_pool import Op, allocate


@njit(nogil=True, cache=True)
def transpose(source: Array, to: Array) -> None:
    """Transpose a matrix, in blocks that stay in the cache."""
    rows, columns = source.shape
    for i in range(0, rows, 32):
        for j in range(0, columns, 32):
            for b in range(j, min(j + 32, columns)):
                for a in range(i, min(i + 32, rows)):
                    to[b, a] = source[a, b]


@njit(nogil=True, cache=True)
def multiply(left: Array, u: Array, tiles: int, right: Array, span: Pair) -> None:
    """Set right (36, tiles, outputs) to left (36, tiles, terms) times u (36, panels, terms, width).

    Only panels ``span``, and their outputs.
    """
    _, _, terms, width = u.shape
    outputs, item = right.shape[2], right.itemsize
    # No number is below it: the tile's ReLU changes nothing.
    floor = right.dtype.type(-np.inf)
    zeros = np.zeros(width, right.dtype)
    pieces, size, larger = divide_rows(tiles)
    for point in range(len(u)):
        for panel in range(span[0], span[1]):
            t = 0
            for piece in range(pieces):
                rows = size + (piece < larger)
                shape = (rows, min(width, outputs - panel * width), 1, terms)
                a, b = (left[point, t].ctypes.data, terms, 0, 1), (u[point, panel].ctypes.data, 0, width)
                into = (right[point, t].ctypes.data + panel * width * item, outputs)
                tile(shape, a, b, (zeros.ctypes.data, 0), into, floor)
                t += rows


@njit(nogil=True, cache=True)
def add_filter_products(v: Array, products: Array, tiles: int, du: Array, span: Pair) -> None:
    """Add products^T v, summed over tiles, to filters ``span`` of du (36, K, C)."""
    _, filters, channels = du.shape
    item = du.itemsize
    floor = du.dtype.type(-np.inf)
    width = VECTORS * REGISTER_BYTES // item
    pieces, size, larger = divide_rows(span[1] - span[0])
    for point in range(len(du)):
        k = span[0]
        for piece in range(pieces):
            rows = size + (piece < larger)
            for c in range(0, channels, width):
                shape = (rows, min(width, channels - c), 1, tiles)
                to = (du[point, k].ctypes.data + c * item, channels)
                left = (products[point].ctypes.data + k * item, 1, 0, filters)
                tile(shape, left, (v[point].ctypes.data + c * item, 0, channels), to, to, floor)
            k += rows


@njit(nogil=True, cache=True)
def add_input_gradients(
    v: Array, first: int, step: int, across: int, strip: Array, dx: Array, corner: Counts, span: Pair
) -> None:
    """Sum the gradients of a row of overlapping tiles in ``strip`` and add them to one image's gradient.

    ``corner``: first channel, and the image's row and column under the strip's first. ``span``: channels added.
    """
    channel, top, left = corner
    channels, item, zero = strip.shape[2], strip.itemsize, strip.dtype.type(0)
    distance = v.shape[1] * channels
    strip[:] = 0
    for t in range(across):
        taken = (v.ctypes.data + ((first + t) * channels + span[0]) * item, SIZE * distance, distance)
        to_tile = strip.ctypes.data + (t * step * channels + span[0]) * item
        into = (to_tile, strip.shape[1] * channels, channels)
        input_gradient_tile(0, taken, into, span[1] - span[0], zero)
    height, width, _ = dx.shape
    for i in range(max(-top, 0), min(height - top, SIZE)):
        for j in range(max(-left, 0), min(width - left, strip.shape[1])):
            to = dx[top + i, left + j, channel + span[0] : channel + span[1]]
            source = strip[i, j, span[0] : span[1]]
            for c in range(len(source)):
                to[c] += source[c]


PRODUCTS: Final = SIZE * SIZE

Taps = tuple[int, Pair]
"""Taps and padding."""
STRIP_BYTES: Final = 3 << 19
"""Bytes of transformed inputs and outputs processed at a time."""
MIN_TILES: Final = 8 * ROWS
"""Smallest number of tiles processed at a time; each pass reads all transformed filters."""
MIN_CHANNELS: Final = 16
"""With fewer channels, the transforms take longer than the saved products."""


class Winograd(Op[WindowGeometry]):
    """Convolution with 3x3 or 5x5 taps and stride 1 (Lavin & Gray 2015, arXiv 1509.09308).

        V = B^T x B            per tile of 6x6 inputs; tiles are 7 - taps apart
        U = G weight G^T       per filter and channel
        P = V U                36 products of (tiles, C) with (C, K)
        y = A^T P A

    The gradients use the transposed matrices: dP = A dy A^T, dU = V^T dP, dV = dP U^T, dweight = G^T dU G, and
    dx = B dV B^T, summed where tiles overlap. Backward computes V again; storing it would need
    36 / (7 - taps)^2 times the input's memory.
    """

    def __init__(self, geometry: WindowGeometry) -> None:
        super().__init__(geometry)
        self._taps = geometry.kernel[0]
        self._step = SIZE + 1 - self._taps
        self._channels = geometry.image[2] // geometry.groups
        self._filters = geometry.output[2] // geometry.groups
        rows, columns, _ = geometry.output
        self._across = -(-columns // self._step)
        self._down = -(-rows // self._step)
        item = np.dtype(geometry.dtype).itemsize
        tiles = max(STRIP_BYTES // (PRODUCTS * item * (self._channels + self._filters)), MIN_TILES)
        self._rows_at_once = max(tiles // self._across, 1)

    @staticmethod
    def suits(geometry: WindowGeometry) -> bool:
        """Return True if the geometry is supported and has enough channels to be faster than a direct sum."""
        channels, filters = geometry.image[2], geometry.output[2]
        return (
            geometry.kernel in {(3, 3), (5, 5)}
            and geometry.stride == (1, 1)
            and max(geometry.padding) < geometry.kernel[0]
            and min(channels, filters) // geometry.groups >= MIN_CHANNELS
        )

    def forward(self, x: Array, weights: Weights) -> Array:
        self._saved = ()
        geometry, taps, channels, filters = self._geometry, self._taps, self._channels, self._filters
        y = allocate((len(x), *geometry.output), x.dtype)
        start = np.zeros(geometry.output[2], x.dtype) if weights.bias is None else weights.bias
        transposed = allocate((taps * taps * channels, filters), x.dtype)
        u = allocate((PRODUCTS, *panels(channels, filters, x)), x.dtype)
        floor, window = x.dtype.type(0 if geometry.relu else -math.inf), (taps, geometry.padding)
        grid = self._divided(x, u.shape[1], len(x) * self._down)
        count = math.prod(grid)
        results = allocate((count, self._step, self._step, filters), x.dtype)
        buffers = (*self._buffers(x, count, grid[0]), results)
        for group in range(geometry.groups):
            k = slice(group * filters, (group + 1) * filters)
            transpose(weights.weight[k].reshape(filters, -1), transposed)
            strides = (filters * channels * taps, filters * channels, filters)
            _transform_in_parts(taps, transposed, strides, filters, u)
            arguments = ((x, y), (group * channels, k.start), u, start[k])
            if count == 1:
                _forward(*arguments, tuple(buffer[0] for buffer in buffers), window, floor, (0, *grid))
            else:
                _forward_in_parts(*arguments, buffers, window, floor, grid)
        self._saved = (x, y if geometry.relu else allocate((0, *geometry.output), x.dtype))
        return y

    def backward(self, dy: Array, weights: Weights, needs_dx: bool) -> Array | None:
        geometry, taps, channels, filters = self._geometry, self._taps, self._channels, self._filters
        (x, y), self._saved = self._saved, ()
        dx = allocate(x.shape if needs_dx else (0, *x.shape[1:]), x.dtype)
        u = allocate((PRODUCTS if needs_dx else 0, *panels(filters, channels, x)), x.dtype)
        # whole images: tiles overlap in the input gradient
        grid = self._divided(x, panels(channels, filters, x)[0], len(x))
        count = math.prod(grid)
        gradients = allocate((count, self._step, self._across * self._step, filters), x.dtype)
        buffers = (*self._buffers(x, count, grid[0]), gradients)
        du = allocate((grid[0], PRODUCTS, filters, channels), x.dtype)
        dbiases = np.empty((grid[0], 0 if weights.dbias is None else filters), x.dtype)
        window = (taps, geometry.padding)
        for group in range(geometry.groups):
            k = slice(group * filters, (group + 1) * filters)
            dweight = weights.dweight[k]
            if needs_dx:
                _transform_in_parts(
                    taps, weights.weight[k], (channels * taps, channels, channels * taps**2), channels, u
                )
            arguments = ((x, y, dy, dx), (group * channels, k.start), u)
            dweights = dweight[None] if grid[0] == 1 else allocate((grid[0], *dweight.shape), x.dtype)
            if count == 1:
                into, memory = (du[0], dbiases[0], dweights[0]), tuple(buffer[0] for buffer in buffers)
                _backward(*arguments, into, memory, window, (0, *grid))
            else:
                _backward_in_parts(*arguments, (du, dbiases, dweights), buffers, window, grid)
            if grid[0] > 1:
                add_parts(dweights, dweight)
            if weights.dbias is not None:
                weights.dbias[k] = dbiases.sum(axis=0)
        return dx if needs_dx else None

    def _divided(self, x: Array, panels: int, lines: int) -> Pair:
        """Return how many parts divide the ``lines``, and how many the panels of filters."""
        tiles = PRODUCTS * len(x) * self._down * self._across
        weights, pixels = PRODUCTS * self._channels * self._filters, tiles * (self._channels + self._filters)
        products = tiles * self._channels * self._filters
        parts = number(lines * panels, products * self._geometry.groups // TILE_PRODUCTS)
        return grid(parts, lines, panels, weights, pixels, products)

    def _buffers(self, x: Array, parts: int, down: int) -> tuple[Array, Array, Array]:
        """For each part: inputs under a row of tiles, V and P; ``down`` parts divide the images or lines."""
        rows = -(-len(x) // down) * self._down
        tiles = max(min(self._rows_at_once, rows), 1) * self._across
        strip = allocate((parts, SIZE, (self._across - 1) * self._step + SIZE, self._channels), x.dtype)
        v = allocate((parts, PRODUCTS, tiles, self._channels), x.dtype)
        return strip, v, allocate((parts, PRODUCTS, tiles, self._filters), x.dtype)


def _transform_in_parts(taps: int, weight: Array, strides: Counts, outputs: int, u: Array) -> None:
    parts = bounds(u.shape[2], u.size * SIZE)
    if len(parts) == 2:
        transform_filters(taps, weight, strides, outputs, u, 0, u.shape[2])
    else:
        _transform_parts(parts, taps, weight, strides, outputs, u)


@njit(nogil=True, cache=True, parallel=True)
def _transform_parts(parts: Array, taps: int, weight: Array, strides: Counts, outputs: int, u: Array) -> None:
    for part in prange(len(parts) - 1):
        transform_filters(taps, weight, strides, outputs, u, parts[part], parts[part + 1])


@njit(nogil=True, cache=True, parallel=True)
def _forward_in_parts(
    images: Arrays, first: Pair, u: Array, bias: Array, buffers: Arrays, window: Taps, floor: float, grid: Pair
) -> None:
    (x, y), (strips, vs, products, results), (taps, padding), (down, across) = images, buffers, window, grid
    for part in prange(down * across):
        memory = (strips[part], vs[part], products[part], results[part])
        _forward((x, y), first, u, bias, memory, (taps, padding), floor, (part, down, across))


@njit(nogil=True, cache=True, parallel=True)
def _backward_in_parts(
    images: Arrays, first: Pair, u: Array, totals: Arrays, buffers: Arrays, window: Taps, grid: Pair
) -> None:
    (x, y, dy, dx), (strips, vs, products, gradients), (taps, padding) = images, buffers, window
    (du, dbias, dweight), (down, across) = totals, grid
    for part in prange(down * across):
        memory, i = (strips[part], vs[part], products[part], gradients[part]), part // across
        into = (du[i], dbias[i], dweight[i])
        _backward((x, y, dy, dx), first, u, into, memory, (taps, padding), (part, down, across))


@njit(nogil=True, cache=True)
def _forward(
    images: Arrays, first: Pair, u: Array, bias: Array, buffers: Arrays, window: Taps, floor: float, at: Counts
) -> None:
    """Fill the outputs of a group of filters; ``first`` channel of the inputs and of the outputs.

    ``at``: number of the part, and how many parts divide the lines of tiles, and the panels of filters.
    """
    (x, y), (channel, k), (strip, v, products, results), (taps, padding) = images, first, buffers, window
    step = SIZE + 1 - taps
    _, rows, columns, _ = y.shape
    filters, item = products.shape[2], x.itemsize
    down, across = -(-rows // step), -(-columns // step)
    at_once = v.shape[1] // across
    distance = products.shape[1] * filters
    span = share(u.shape[1], at[0] % at[2], at[2])
    low, high = span[0] * u.shape[3], min(span[1] * u.shape[3], filters)
    top, bottom = share(len(x) * down, at[0] // at[2], at[1])
    # Rows of tiles are counted through all images, so that those of small images also fill a product.
    for begin in range(top, bottom, at_once):
        lines = min(at_once, bottom - begin)
        for line in range(lines):
            n, p = (begin + line) // down, (begin + line) % down * step
            transform_inputs(x[n], (channel, p - padding[0], -padding[1]), strip, step, across, line * across, v)
        multiply(v, u, lines * across, products, span)
        for line in range(lines):
            n, p = (begin + line) // down, (begin + line) % down * step
            for t in range(across):
                taken = (products[0, line * across + t].ctypes.data + low * item, SIZE * distance, distance)
                into = (results.ctypes.data + low * item, step * filters, filters)
                output_tile(taps, taken, into, high - low, floor)
                for i in range(min(step, rows - p)):
                    for j in range(min(step, columns - t * step)):
                        out, result = y[n, p + i, t * step + j, k + low : k + high], results[i, j, low:high]
                        added = bias[low:high]
                        for f in range(high - low):
                            value = result[f] + added[f]
                            out[f] = max(value, floor)


@njit(nogil=True, cache=True)
def _backward(
    images: Arrays, first: Pair, u: Array, totals: Arrays, buffers: Arrays, window: Taps, at: Counts
) -> None:
    """Fill the gradients of a group of filters; ``first`` channel of the inputs and of the outputs.

    ``at`` as in :func:`_forward`, but images are divided, and the panels of channels too.
    """
    (x, y, dy, dx), (channel, k), (du, dbias, dweight), (taps, padding) = images, first, totals, window
    strip, v, products, gradients = buffers
    step = SIZE + 1 - taps
    _, rows, columns, _ = dy.shape
    _, filters, channels = du.shape
    item, zero = x.itemsize, x.dtype.type(0)
    down, across = -(-rows // step), -(-columns // step)
    at_once = v.shape[1] // across
    distance = products.shape[1] * filters
    top, bottom = share(len(x), at[0] // at[2], at[1])
    low, high = share(filters, at[0] % at[2], at[2])
    span = share(u.shape[1], at[0] % at[2], at[2])
    left, right = span[0] * u.shape[3], min(span[1] * u.shape[3], channels)
    du[:, low:high] = 0
    dbias[low : min(high, len(dbias))] = 0
    # Overlapping tiles are added to it.
    for n in range(top, min(bottom, len(dx))):
        dx[n, :, :, channel + left : channel + right] = 0
    top, bottom = top * down, bottom * down
    for begin in range(top, bottom, at_once):
        lines = min(at_once, bottom - begin)
        for line in range(lines):
            n, p = (begin + line) // down, (begin + line) % down * step
            transform_inputs(x[n], (channel, p - padding[0], -padding[1]), strip, step, across, line * across, v)
            copy_region(dy[n], k, p, 0, gradients)
            if len(y):
                rectify_region(y[n], k, p, 0, gradients)
            if dbias.size:
                for i in range(step):
                    for j in range(columns):
                        for f in range(low, high):
                            dbias[f] += gradients[i, j, f]
            for t in range(across):
                taken = (gradients.ctypes.data + t * step * filters * item, gradients.shape[1] * filters, filters)
                into = (products[0, line * across + t].ctypes.data, SIZE * distance, distance)
                output_gradient_tile(taps, taken, into, filters, zero)
        add_filter_products(v, products, lines * across, du, (low, high))
        if len(dx):
            multiply(products, u, lines * across, v, span)
            for line in range(lines):
                n, p = (begin + line) // down, (begin + line) % down * step
                corner = (channel, p - padding[0], -padding[1])
                add_input_gradients(v, line * across, step, across, strip, dx[n], corner, (left, right))
    # The transform is linear: the sum over all tiles is transformed once.
    far = filters * channels
    for f in range(low, high):
        taken, into = (du[0, f].ctypes.data, SIZE * far, far), (dweight[f].ctypes.data, taps * channels, channels)
        filter_gradient_tile(taps, taken, into, channels, zero)
