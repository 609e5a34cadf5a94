"""Direct convolution in register tiles over the image; windows are not copied.

A row of a window is S C contiguous numbers in an NHWC image. So a tile of the product

    y[pixels, filters] = sum over r of x[pixels' rows r, S C] weight[r, S C, filters]

reads the image through strides (Georganas et al. 2018, arXiv 1808.05567). Both gradients use the same tile with
other strides.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numba import prange

from hpcdl.compiled import njit
from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import ConvolutionGeometry, Shape
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

CACHED_BYTES: Final = 1 << 19
"""Bytes that the weight gradient reads repeatedly; they fit a core's second-level cache."""


@njit(nogil=True, cache=True)
def differentiate(
    x: Any, y: Any, dy: Any, packed: Any, dweight: Any, dbias: Any, dx: Any, frame: Any, dz: Any, stride: Any,
    padding: Any, margin: Any,
) -> None:  # fmt: skip
    """Overwrite ``dweight`` (groups, K, R, S, C); also ``dbias`` and ``dx`` unless they are empty.

    ``packed`` are the weights from :func:`hpcdl.nn.kernels.numba.vectors.pack_reversed`. ``frame`` and ``dz`` are
    for images and gradients with a border, ``y`` is the output of a ReLU. Each is empty if not used.
    """
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
    parts: Any, x: Any, y: Any, dy: Any, packed: Any, dweights: Any, dbiases: Any, dx: Any,
    frames: Any, framed: Any, stride: Any, padding: Any, margin: Any,
) -> None:  # fmt: skip
    for part in prange(len(parts) - 1):
        i, j = parts[part], parts[part + 1]
        differentiate(
            x[i:j], y[i:j], dy[i:j], packed, dweights[part], dbiases[part], dx[i:j], frames[part],
            framed[part], stride, padding, margin,
        )  # fmt: skip


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


NO_FRAME: Final = (0, 0, 0)
"""Shape of a frame that is not needed."""


class Convolution:
    """Any convolution, one image at a time, so that copies for padding or groups stay in the cache."""

    def __init__(self, geometry: ConvolutionGeometry) -> None:
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

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        self._saved = ()
        geometry = self._geometry
        y = allocate((len(x), *self._output), x.dtype)
        grouped = weight.reshape(geometry.groups, self._filters, -1, self._channels)
        packed = allocate((geometry.groups, *panels(grouped.shape[2] * self._channels, self._filters, x)), x.dtype)
        pack(grouped, packed)
        start = np.zeros(geometry.output[2], x.dtype) if bias is None else bias
        images, outputs = x.reshape(len(x), *geometry.image), y.reshape(len(y), *geometry.output)
        floor = x.dtype.type(0 if geometry.relu else -math.inf)
        places = (geometry.kernel, geometry.stride, geometry.padding)
        parts = bounds(len(x), y.size * grouped[0, 0].size)
        frames = allocate((len(parts) - 1, *self._frame), x.dtype)
        if len(frames) == 1:
            _forward(images, packed, start, outputs, frames[0], *places, floor)
        else:
            _forward_in_parts(parts, images, packed, start, outputs, frames, *places, floor)
        self._saved = (x, y if geometry.relu else allocate((0, *geometry.output), x.dtype))
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
        geometry = self._geometry
        (x, y), self._saved = self._saved, ()
        images, outputs = x.reshape(len(x), *geometry.image), y.reshape(len(y), *geometry.output)
        gradients = dy.reshape(len(dy), *geometry.output)
        grouped = (geometry.groups, self._filters, *geometry.kernel, self._channels)
        dx = allocate(images.shape if needs_dx else (0, *geometry.image), x.dtype)
        taps = (self._margin[0] + 1) * (self._margin[1] + 1)
        packed = allocate(
            (
                *(geometry.stride if needs_dx else (0, 0)),
                geometry.groups,
                *panels(taps * self._filters, self._channels, x),
            ),
            x.dtype,
        )
        pack_reversed(weight.reshape(grouped), packed)
        parts = bounds(len(dy), dy.size * weight[0].size)
        count = len(parts) - 1
        dbiases = np.empty((count, 0 if dbias is None else len(dbias)), x.dtype)
        frames, framed = (allocate((count, *shape), x.dtype) for shape in (self._frame, self._gradient_frame))
        places = (geometry.stride, geometry.padding, self._margin)
        if count == 1:
            differentiate(
                images, outputs, gradients, packed, dweight.reshape(grouped), dbiases[0], dx,
                frames[0], framed[0], *places,
            )  # fmt: skip
        else:
            dweights = allocate((count, *grouped), x.dtype)
            _differentiate_in_parts(
                parts, images, outputs, gradients, packed, dweights, dbiases, dx, frames, framed, *places
            )
            add_parts(dweights, dweight.reshape(grouped))
        if dbias is not None:
            dbias[...] = dbiases.sum(axis=0)
        return dx.reshape(x.shape) if needs_dx else None


def add_parts(parts: Array, total: Array) -> None:
    """Set ``total`` to the sum over the first axis of ``parts``."""
    np.add(parts[0], parts[1], out=total)
    for other in parts[2:]:
        total += other


def _in_one_row(geometry: ConvolutionGeometry) -> ConvolutionGeometry:
    """Return an equivalent 1x1 convolution on images of one row; long rows fill tiles better."""
    height, width, channels = geometry.image
    image, output = (1, height * width, channels), (1, height * width, geometry.output[2])
    return replace(geometry, image=image, output=output)


def _needed(frame: Shape, image: Shape) -> Shape:
    return NO_FRAME if frame == image else frame


@njit(nogil=True, cache=True)
def _forward(
    x: Any, packed: Any, bias: Any, y: Any, frame: Any, kernel: Any, stride: Any, padding: Any, floor: Any
) -> None:
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
                        tile(
                            height, min(width, each - panel * width), kernel[0], run,
                            origin + (p * stride[0] * wide + q * stride[1]) * channels * item,
                            stride[1] * channels, wide * channels, 1,
                            packed[g, panel].ctypes.data, run * width, width,
                            bias.ctypes.data + k * item, 0,
                            y.ctypes.data + (((n * rows + p) * columns + q) * filters + k) * item, filters, floor,
                        )  # fmt: skip
                        q += height


@njit(nogil=True, cache=True, parallel=True)
def _forward_in_parts(
    parts: Any, x: Any, packed: Any, bias: Any, y: Any, frames: Any, kernel: Any, stride: Any, padding: Any,
    floor: Any,
) -> None:  # fmt: skip
    for part in prange(len(parts) - 1):
        i, j = parts[part], parts[part + 1]
        _forward(x[i:j], packed, bias, y[i:j], frames[part], kernel, stride, padding, floor)
