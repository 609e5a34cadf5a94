"""Direct convolution in register tiles over the image; windows are not copied.

A row of a window is S C contiguous numbers in an NHWC image. So a tile of the product

    y[pixels, filters] = sum over r of x[pixels' rows r, S C] weight[r, S C, filters]

reads the image through strides (Georganas et al. 2018, arXiv 1808.05567). Both gradients use the same tile with
other strides.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np
from numba import prange

from hpcdl.compiled import njit
from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import Pair, Shape, WindowGeometry
from hpcdl.nn.kernels.numba.parts import bounds
from hpcdl.nn.kernels.numba.vectors import (
    VECTORS,
    copy_region,
    divide_rows,
    lanes,
    pack,
    pack_reversed,
    panels,
    rectify_region,
    tile,
)
from hpcdl.nn.kernels.numpy.activation_pool import allocate
from hpcdl.nn.ops import Weights

CACHED_BYTES: Final = 1 << 19
"""Bytes that the weight gradient reads repeatedly; they fit a core's second-level cache."""


Arrays = tuple[Array, ...]
Places = tuple[Pair, Pair, Pair]


@njit(nogil=True, cache=True)
def differentiate(
    saved: Arrays, dy: Array, packed: Array, gradients: Arrays, frames: Arrays, places: Places
) -> None:
    """Overwrite ``gradients``: (groups, K, R, S, C) of the weights, of the biases and the inputs unless empty.

    ``saved``: inputs, and outputs of a ReLU. ``packed`` are the weights from
    :func:`hpcdl.nn.kernels.numba.vectors.pack_reversed`. ``frames``: memory for an image and its gradient with a
    border. ``places``: stride, padding and margin. Each array is empty if not used.
    """
    (x, y), (dweight, dbias, dx), (frame, dz), (stride, padding, margin) = saved, gradients, frames, places
    groups, filters, _, _, channels = dweight.shape
    dweight[:] = 0
    dbias[:] = 0
    for n in range(len(dy)):
        for g in range(groups):
            image, gradient, corner = x[n], dy[n], (0, 0)
            if frame.size:
                copy_region(x[n], g * channels, -padding[0], -padding[1], frame)
                image = frame
            if dz.size:
                copy_region(dy[n], g * filters, -margin[0], -margin[1], dz)
                if len(y):
                    rectify_region(y[n], g * filters, -margin[0], -margin[1], dz)
                gradient, corner = dz, margin
            if dbias.size:
                _add_pixels(gradient, corner, dy.shape[1:3], dbias[g * filters : (g + 1) * filters])
            _weight_gradient(image, gradient, corner, dweight[g], dy.shape[1:3], stride)
            if len(dx):
                _input_gradient(gradient, packed[:, :, g], dx[n], g * channels, dweight.shape, padding, margin)


@njit(nogil=True, cache=True, parallel=True)
def _differentiate_in_parts(
    parts: Array, saved: Arrays, dy: Array, packed: Array, gradients: Arrays, frames: Arrays, places: Places
) -> None:
    # numba passes arrays and numbers to the threads, not tuples of them
    (x, y), (dweights, dbiases, dx), (images, dzs), (stride, padding, margin) = saved, gradients, frames, places
    for part in prange(len(parts) - 1):
        i, j = parts[part], parts[part + 1]
        into, memory = (dweights[part], dbiases[part], dx[i:j]), (images[part], dzs[part])
        differentiate((x[i:j], y[i:j]), dy[i:j], packed, into, memory, (stride, padding, margin))


@njit(nogil=True, cache=True)
def _add_pixels(gradient: Array, corner: Pair, output: Pair, dbias: Array) -> None:
    total = np.zeros_like(dbias)
    for p in range(output[0]):
        for q in range(output[1]):
            pixel = gradient[corner[0] + p, corner[1] + q]
            for j in range(len(dbias)):
                total[j] += pixel[j]
    dbias += total


@njit(nogil=True, cache=True)
def _cached_rows(image: Array, gradient: Array, stride: Pair) -> int:
    """Return the number of gradient rows that fit the cache together with their image rows."""
    row = (stride[0] * image.shape[1] * image.shape[2] + gradient.shape[1] * gradient.shape[2]) * image.itemsize
    return max(CACHED_BYTES // row, 1)  # type: ignore[no-any-return]


@njit(nogil=True, cache=True)
def _weight_gradient(
    image: Array, gradient: Array, corner: Pair, dweight: Array, output: Pair, stride: Pair
) -> None:
    """Add one image's contribution to dweight (K, R, S, C): tile rows are filters, tile columns a window's row."""
    filters, taps, _, channels = dweight.shape
    run, wide, item = dweight.shape[2] * channels, image.shape[1], image.itemsize
    floor = dweight.dtype.type(-np.inf)
    width = VECTORS * lanes(floor)
    pieces, size, larger = divide_rows(filters)
    # All taps read the same few rows before the next ones: these come from the cache then, not from memory.
    step = _cached_rows(image, gradient, stride)
    for p in range(0, output[0], step):
        k = 0
        for piece in range(pieces):
            height = size + (piece < larger)
            for r in range(taps):
                for j in range(0, run, width):
                    shape = (height, min(width, run - j), min(step, output[0] - p), output[1])
                    first = gradient[corner[0] + p, corner[1]].ctypes.data + k * item
                    left = (first, 1, gradient.shape[1] * gradient.shape[2], gradient.shape[2])
                    origin = image.ctypes.data + ((p * stride[0] + r) * wide * channels + j) * item
                    c = (dweight.ctypes.data + ((k * taps + r) * run + j) * item, taps * run)
                    tile(shape, left, (origin, stride[0] * wide * channels, stride[1] * channels), c, c, floor)
            k += height


@njit(nogil=True, cache=True)
def _input_gradient(
    gradient: Array, packed: Array, dx: Array, channel: int, weights: Shape, padding: Pair, margin: Pair
) -> None:
    """Overwrite one image's gradient, from channel ``channel`` on; packed is (a, b, panels, terms, width)."""
    height, width, total = dx.shape
    vertical, horizontal, count, _, many = packed.shape
    _, filters, kernel_rows, kernel_columns, channels = weights
    wide, item = gradient.shape[1], dx.itemsize
    floor = dx.dtype.type(-np.inf)
    zeros = np.zeros(many, dx.dtype)
    # Pixels whose place has the same remainder (a, b) by the stride meet the same taps.
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
                        shape = (rows, min(many, channels - panel * many), taps, others * filters)
                        left = (gradient.ctypes.data + (t * wide + u) * filters * item, filters, wide * filters, 1)
                        right = (packed[a, b, panel].ctypes.data, others * filters * many, many)
                        into = dx.ctypes.data + ((h * width + w) * total + channel + panel * many) * item
                        tile(shape, left, right, (zeros.ctypes.data, 0), (into, horizontal * total), floor)
                        w += rows * horizontal


NO_FRAME: Final = (0, 0, 0)
"""Shape of a frame that is not needed."""


class Convolution:
    """Every convolution, one image at a time, so that copies for padding or groups stay in the cache."""

    def __init__(self, geometry: WindowGeometry) -> None:
        self._output = geometry.output
        if geometry.kernel == geometry.stride == (1, 1) and geometry.padding == (0, 0):
            geometry = _in_one_row(geometry)
        self._geometry = geometry
        self._saved: tuple[Array, ...] = ()
        height, width, channels = geometry.image
        self._channels, self._filters = channels // geometry.groups, geometry.output[2] // geometry.groups
        (top, left), (vertical, horizontal) = geometry.padding, geometry.stride
        self._frame = _needed((height + 2 * top, width + 2 * left, self._channels), geometry.image)
        # Input pixel h meets tap r at output p if h + padding = r + stride p. So, for each remainder of h +
        # padding by the stride, its gradient is a convolution of dy, without stride, by every stride-th tap in
        # reverse. That convolution starts so many rows and columns before dy:
        self._margin = (-(-geometry.kernel[0] // vertical) - 1, -(-geometry.kernel[1] // horizontal) - 1)
        rows = max(geometry.output[0], (height - 1 + top) // vertical + 1)
        columns = max(geometry.output[1], (width - 1 + left) // horizontal + 1)
        framed = (self._margin[0] + rows, self._margin[1] + columns, self._filters)
        self._gradient_frame = framed if geometry.relu else _needed(framed, geometry.output)

    def forward(self, x: Array, weights: Weights) -> Array:
        self._saved = ()
        geometry = self._geometry
        y = allocate((len(x), *self._output), x.dtype)
        grouped = weights.weight.reshape(geometry.groups, self._filters, -1, self._channels)
        packed = allocate((geometry.groups, *panels(grouped.shape[2] * self._channels, self._filters, x)), x.dtype)
        pack(grouped, packed)
        start = np.zeros(geometry.output[2], x.dtype) if weights.bias is None else weights.bias
        images, outputs = x.reshape(len(x), *geometry.image), y.reshape(len(y), *geometry.output)
        floor = x.dtype.type(0 if geometry.relu else -math.inf)
        places = (geometry.kernel, geometry.stride, geometry.padding)
        parts = bounds(len(x), y.size * grouped[0, 0].size)
        frames = allocate((len(parts) - 1, *self._frame), x.dtype)
        if len(frames) == 1:
            _forward(images, packed, start, outputs, frames[0], places, floor)
        else:
            _forward_in_parts(parts, images, packed, start, outputs, frames, places, floor)
        self._saved = (x, y if geometry.relu else allocate((0, *geometry.output), x.dtype))
        return y

    def backward(self, dy: Array, weights: Weights, needs_dx: bool) -> Array | None:
        geometry, (weight, _, dweight, dbias) = self._geometry, weights
        (x, y), self._saved = self._saved, ()
        saved = (x.reshape(len(x), *geometry.image), y.reshape(len(y), *geometry.output))
        gradients = dy.reshape(len(dy), *geometry.output)
        grouped = (geometry.groups, self._filters, *geometry.kernel, self._channels)
        dx = allocate((len(x) if needs_dx else 0, *geometry.image), x.dtype)
        taps = (self._margin[0] + 1) * (self._margin[1] + 1)
        residues = geometry.stride if needs_dx else (0, 0)
        terms = panels(taps * self._filters, self._channels, x)
        packed = allocate((*residues, geometry.groups, *terms), x.dtype)
        pack_reversed(weight.reshape(grouped), packed)
        parts = bounds(len(dy), dy.size * weight[0].size)
        count = len(parts) - 1
        dbiases = np.empty((count, 0 if dbias is None else len(dbias)), x.dtype)
        frames = tuple(allocate((count, *shape), x.dtype) for shape in (self._frame, self._gradient_frame))
        places = (geometry.stride, geometry.padding, self._margin)
        if count == 1:
            into, memory = (dweight.reshape(grouped), dbiases[0], dx), (frames[0][0], frames[1][0])
            differentiate(saved, gradients, packed, into, memory, places)
        else:
            dweights = allocate((count, *grouped), x.dtype)
            _differentiate_in_parts(parts, saved, gradients, packed, (dweights, dbiases, dx), frames, places)
            add_parts(dweights, dweight.reshape(grouped))
        if dbias is not None:
            dbias[...] = dbiases.sum(axis=0)
        return dx.reshape(x.shape) if needs_dx else None


def add_parts(parts: Array, total: Array) -> None:
    """Set ``total`` to the sum over the first axis of ``parts``."""
    np.add(parts[0], parts[1], out=total)
    for other in parts[2:]:
        total += other


def _in_one_row(geometry: WindowGeometry) -> WindowGeometry:
    """Return an equivalent 1x1 convolution on images of one row; long rows fill tiles better."""
    height, width, channels = geometry.image
    image, output = (1, height * width, channels), (1, height * width, geometry.output[2])
    return replace(geometry, image=image, output=output)


def _needed(frame: Shape, image: Shape) -> Shape:
    return NO_FRAME if frame == image else frame


@njit(nogil=True, cache=True)
def _forward(x: Array, packed: Array, bias: Array, y: Array, frame: Array, places: Places, floor: float) -> None:
    kernel, stride, padding = places
    groups, count, terms, width = packed.shape
    images, rows, columns, filters = y.shape
    item, each = y.itemsize, filters // groups
    run = terms // kernel[0]
    channels = run // kernel[1]
    wide = frame.shape[1] if frame.size else x.shape[2]
    pieces, size, larger = divide_rows(columns)
    for n in range(images):
        for g in range(groups):
            origin = x[n].ctypes.data
            if frame.size:
                copy_region(x[n], g * channels, -padding[0], -padding[1], frame)
                origin = frame.ctypes.data
            for panel in range(count):
                k = g * each + panel * width
                for p in range(rows):
                    q = 0
                    for piece in range(pieces):
                        height = size + (piece < larger)
                        shape = (height, min(width, each - panel * width), kernel[0], run)
                        first = origin + (p * stride[0] * wide + q * stride[1]) * channels * item
                        left = (first, stride[1] * channels, wide * channels, 1)
                        right = (packed[g, panel].ctypes.data, run * width, width)
                        into = y.ctypes.data + (((n * rows + p) * columns + q) * filters + k) * item
                        tile(shape, left, right, (bias.ctypes.data + k * item, 0), (into, filters), floor)
                        q += height


@njit(nogil=True, cache=True, parallel=True)
def _forward_in_parts(
    parts: Array, x: Array, packed: Array, bias: Array, y: Array, frames: Array, places: Places, floor: float
) -> None:
    kernel, stride, padding = places
    for part in prange(len(parts) - 1):
        i, j = parts[part], parts[part + 1]
        _forward(x[i:j], packed, bias, y[i:j], frames[part], (kernel, stride, padding), floor)
