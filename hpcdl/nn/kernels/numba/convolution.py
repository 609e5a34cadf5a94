"""Convolution as register tiles over the image itself: no window is ever copied.

A window's row lies in one piece in an NHWC image, S C numbers long, so a tile of the product

    y[pixels, filters] = sum over r of x[pixels' rows r, S C] weight[r, S C, filters]

reads the image through strides (direct convolution in register tiles: Georganas et al. 2018, arXiv
1808.05567). The two gradients are the same tile with other strides.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import njit

from hpcdl.nn.kernels.numba.tile import ROWS, VECTORS, tile
from hpcdl.nn.kernels.numba.vectors import REGISTER_BYTES, lanes
from hpcdl.nn.kernels.numpy.memory import lend
from hpcdl.nn.threads import in_parts

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import ConvolutionGeometry, Shape

CACHED_BYTES: Final = 1 << 19
"""What the weight gradient reads over and over stays within 512 KiB of a core's second-level cache."""

NOTHING: Final = (0, 0, 0)
"""The shape of a frame that is not needed."""


class Convolution:
    """Any convolution, an image at a time, so that what is copied for padding or groups stays in the cache."""

    def __init__(self, geometry: ConvolutionGeometry) -> None:
        self._output = geometry.output
        if geometry.kernel == geometry.stride == (1, 1) and geometry.padding == (0, 0):
            geometry = _in_one_row(geometry)
        self._geometry = geometry
        self._kept: tuple[Array, ...] = ()
        height, width, channels = geometry.image
        self._channels, self._filters = channels // geometry.groups, geometry.output[2] // geometry.groups
        (top, left), (vertical, horizontal) = geometry.padding, geometry.stride
        self._frame = _needed((height + 2 * top, width + 2 * left, self._channels), geometry.image)
        # A pixel h of the input is under the taps r with h + padding = r + stride p. So, for each remainder of
        # h + padding by the stride, its gradient is a convolution, without stride, of dy by every stride-th
        # tap in reverse, which begins so many rows and columns before dy does:
        self._margin = (-(-geometry.kernel[0] // vertical) - 1, -(-geometry.kernel[1] // horizontal) - 1)
        rows = max(geometry.output[0], (height - 1 + top) // vertical + 1)
        columns = max(geometry.output[1], (width - 1 + left) // horizontal + 1)
        framed = (self._margin[0] + rows, self._margin[1] + columns, self._filters)
        self._gradient_frame = framed if geometry.relu else _needed(framed, geometry.output)

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        self._kept = ()
        geometry = self._geometry
        y = lend((len(x), *self._output), x.dtype)
        grouped = weight.reshape(geometry.groups, self._filters, -1, self._channels)
        packed = lend((geometry.groups, *panels(grouped.shape[2] * self._channels, self._filters, x)), x.dtype)
        _pack(grouped, packed)
        start = np.zeros(geometry.output[2], x.dtype) if bias is None else bias
        images, outputs = x.reshape(len(x), *geometry.image), y.reshape(len(y), *geometry.output)
        floor = x.dtype.type(0 if geometry.relu else -math.inf)

        def part(i: int, j: int) -> None:
            frame = lend(self._frame, x.dtype)
            places = (geometry.kernel, geometry.stride, geometry.padding)
            _forward(images[i:j], packed, start, outputs[i:j], frame, *places, floor)

        in_parts(len(x), part, numbers=x.size)
        self._kept = (x, y if geometry.relu else lend((0, *geometry.output), x.dtype))
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, wanted: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        geometry = self._geometry
        (x, y), self._kept = self._kept, ()
        images, outputs = x.reshape(len(x), *geometry.image), y.reshape(len(y), *geometry.output)
        gradients = dy.reshape(len(dy), *geometry.output)
        grouped = (geometry.groups, self._filters, *geometry.kernel, self._channels)
        dx = lend(images.shape if wanted else (0, *geometry.image), x.dtype)
        taps = (self._margin[0] + 1) * (self._margin[1] + 1)
        packed = lend(
            (
                *(geometry.stride if wanted else (0, 0)),
                geometry.groups,
                *panels(taps * self._filters, self._channels, x),
            ),
            x.dtype,
        )
        _pack_reversed(weight.reshape(grouped), packed)
        run = geometry.kernel[1] * self._channels
        is_transposed = _filled(self._filters, x) > _filled(run, x)
        partial = (geometry.groups, geometry.kernel[0], run, self._filters) if is_transposed else (0, 0, 0, 0)

        def part(i: int, j: int) -> tuple[Array, Array]:
            dw = dweight if i == 0 else lend(dweight.shape, x.dtype)
            db = np.empty(0 if dbias is None else len(dbias), x.dtype)
            _backward(
                images[i:j], outputs[i:j], gradients[i:j], packed, dw.reshape(grouped), lend(partial, x.dtype), db,
                dx[i:j], lend(self._frame, x.dtype), lend(self._gradient_frame, x.dtype),
                geometry.stride, geometry.padding, self._margin,
            )  # fmt: skip
            return dw, db

        add_up(in_parts(len(dy), part, numbers=dy.size), dweight, dbias)
        return dx.reshape(x.shape) if wanted else None


def add_up(parts: list[tuple[Array, Array]], dweight: Array, dbias: Array | None) -> None:
    """Add what later parts of the batch found to what the first one left in ``dweight``; sum their dbias."""
    for other, _ in parts[1:]:
        dweight += other
    if dbias is not None:
        dbias[...] = sum(bias for _, bias in parts)


def panels(terms: int, outputs: int, like: Array) -> Shape:
    """Shape of packed weights (panels, terms, width): a tile's width of outputs side by side, for each term."""
    width = VECTORS * REGISTER_BYTES // like.itemsize
    return -(-outputs // width), terms, width


def _in_one_row(geometry: ConvolutionGeometry) -> ConvolutionGeometry:
    """A 1x1 convolution does not know rows: one long one makes tiles as high as can be."""
    height, width, channels = geometry.image
    image, output = (1, height * width, channels), (1, height * width, geometry.output[2])
    return replace(geometry, image=image, output=output)


def _needed(frame: Shape, image: Shape) -> Shape:
    return NOTHING if frame == image else frame


def _filled(outputs: int, like: Array) -> float:
    """Share of the registers' lanes that ``outputs`` numbers fill."""
    lane_count = REGISTER_BYTES // like.itemsize
    return outputs / (-(-outputs // lane_count) * lane_count)


@njit(nogil=True, cache=True)
def _pack(weight: Any, packed: Any) -> None:
    """(groups, K, R S, C) to (groups, panels, R S C, width), zeros beyond the last filter."""
    groups, filters, taps, channels = weight.shape
    width = packed.shape[3]
    for g in range(groups):
        for panel in range(packed.shape[1]):
            for t in range(taps):
                for begin in range(0, channels, 16):  # pieces that are read and written within the cache
                    for j in range(width):
                        k = panel * width + j
                        for c in range(begin, min(begin + 16, channels)):
                            packed[g, panel, t * channels + c, j] = weight[g, k, t, c] if k < filters else 0


@njit(nogil=True, cache=True)
def _pack_reversed(weight: Any, packed: Any) -> None:
    """(groups, K, R, S, C) to (a, b, groups, panels, R' S' K, width): taps a, a + stride, ... last one first."""
    groups, filters, kernel_rows, kernel_columns, channels = weight.shape
    vertical, horizontal, _, count, _, width = packed.shape
    for a in range(vertical):
        taps = -(-(kernel_rows - a) // vertical)
        for b in range(horizontal):
            others = -(-(kernel_columns - b) // horizontal)
            for g in range(groups):
                for panel in range(count):
                    for i in range(taps):
                        for j in range(others):
                            r, s = a + vertical * (taps - 1 - i), b + horizontal * (others - 1 - j)
                            for k in range(filters):
                                row = packed[a, b, g, panel, (i * others + j) * filters + k]
                                for n in range(width):
                                    c = panel * width + n
                                    row[n] = weight[g, k, r, s, c] if c < channels else 0


@njit(nogil=True, cache=True)
def _put(image: Any, channel: int, frame: Any, top: int, left: int) -> None:
    """Copy an image's channels from ``channel`` on into the middle of a frame, whose border stays."""
    height, width, _ = image.shape
    for h in range(height):
        for w in range(width):
            # An index that is a sum may be negative to numba, and then no loop becomes vectors.
            source, to = image[h, w, channel : channel + frame.shape[2]], frame[top + h, left + w]
            for c in range(frame.shape[2]):
                to[c] = source[c]


@njit(nogil=True, cache=True)
def _pieces(count: int) -> Any:
    """(pieces, rows of each, how many of them have one more): as even as can be, none above ROWS."""
    pieces = -(-count // ROWS)
    return pieces, count // pieces, count % pieces


@njit(nogil=True, cache=True)
def _forward(
    x: Any, packed: Any, bias: Any, y: Any, frame: Any, kernel: Any, stride: Any, padding: Any, floor: Any
) -> None:
    groups, count, terms, width = packed.shape
    images, rows, columns, filters = y.shape
    item, each = y.itemsize, filters // groups
    run = terms // kernel[0]
    channels = run // kernel[1]
    frame[:] = 0
    wide = frame.shape[1] if frame.size else x.shape[2]
    pieces, size, larger = _pieces(columns)
    for n in range(images):
        for g in range(groups):
            origin = x[n].ctypes.data
            if frame.size:
                _put(x[n], g * channels, frame, padding[0], padding[1])
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


@njit(nogil=True, cache=True)
def _backward(
    x: Any, y: Any, dy: Any, packed: Any, dweight: Any, partial: Any, dbias: Any, dx: Any, frame: Any, dz: Any,
    stride: Any, padding: Any, margin: Any,
) -> None:  # fmt: skip
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
                _put(x[n], g * channels, frame, padding[0], padding[1])
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
    """Copy one image's gradient, or zeros where its output was not positive, into the frame."""
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
    """How many rows of the gradient, with the rows of the image they belong to, stay in the cache."""
    row = (stride[0] * image.shape[1] * image.shape[2] + gradient.shape[1] * gradient.shape[2]) * image.itemsize
    return max(CACHED_BYTES // row, 1)


@njit(nogil=True, cache=True)
def _weight_gradient(image: Any, gradient: Any, corner: Any, dweight: Any, output: Any, stride: Any) -> None:
    """Add one image's part to dweight (K, R, S, C): rows of a tile are filters, columns a window's row."""
    filters, taps, _, channels = dweight.shape
    run, wide, item = dweight.shape[2] * channels, image.shape[1], image.itemsize
    floor = dweight.dtype.type(-np.inf)
    width = VECTORS * lanes(floor)
    pieces, size, larger = _pieces(filters)
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
    """Add one image's part to partial (R, S C, K): rows of a tile are a window's row, columns filters.

    For images of three channels, whose windows' rows would leave registers half empty.
    """
    taps, run, filters = partial.shape
    wide, item = image.shape[1], image.itemsize
    floor = partial.dtype.type(-np.inf)
    width = VECTORS * lanes(floor)
    pieces, size, larger = _pieces(run)
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
    """Overwrite one image's gradient, channels from ``channel`` on; packed is (a, b, panels, terms, width)."""
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
            pieces, size, larger = _pieces((width - 1 - begin) // horizontal + 1)
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
