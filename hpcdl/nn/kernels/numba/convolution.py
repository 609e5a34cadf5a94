"""Direct convolution in register tiles over the image; windows are not copied.

A row of a window is S C contiguous numbers in an NHWC image. So a tile of the product

    y[pixels, filters] = sum over r of x[pixels' rows r, S C] weight[r, S C, filters]

reads the image through strides (Georganas et al. 2018, arXiv 1808.05567). Both gradients use the same tile with
other strides.
"""

import math
from typing import Final

import numpy as np
from numba import prange

from hpcdl.compiled import njit
from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Weights
from hpcdl.nn.geometry import Pair, Shape, WindowGeometry
from hpcdl.nn.kernels.numba.parts import PRODUCTS, grid, number, share
from hpcdl.nn.kernels.numba.vectors import (
    REGISTER_BYTES,
    VECTORS,
    Counts,
    copy_region,
    divide_rows,
    pack,
    pack_reversed,
    panels,
    rectify_region,
    tile,
)
from hpcdl.nn.kernels.numpy.activation_pool import Op, allocate

CACHED_BYTES: Final = 1 << 19
"""Bytes that the weight gradient reads repeatedly; they fit a core's second-level cache."""
Arrays = tuple[Array, ...]
Places = tuple[Pair, Pair, Pair]


@njit(nogil=True, cache=True)
def differentiate(
    saved: Arrays, dy: Array, weights: Arrays, gradients: Arrays, frames: Arrays, places: Places, at: Counts
) -> None:
    """Overwrite a part of ``gradients``: (groups, K, R, S, C) of the weights, of the biases and the inputs.

    ``saved``: inputs, and outputs of a ReLU. ``weights``: the layer's, and memory for those of
    :func:`hpcdl.nn.kernels.numba.vectors.pack_reversed`, packed already if lines are divided. ``frames``:
    memory for an image and its gradient with a border. ``places``: stride, padding and margin. Each array is empty
    if not used. ``at``: number of the part, and how many parts divide the lines of all images, and the panels of
    filters and of channels.
    """
    (x, y), (weight, packed), (dweight, dbias, dx) = saved, weights, gradients
    (frame, dz), (stride, padding, margin) = frames, places
    groups, filters, kernel_rows, kernel_columns, channels = dweight.shape
    rows, height = dy.shape[1], dx.shape[1]
    down, across = at[0] // at[2], at[0] % at[2]
    begin, end = share(len(dy) * rows, down, at[1])
    top, bottom = share(len(dx) * height, down, at[1])
    panels = share(packed.shape[3], across, at[2])
    span = share(filters, across, at[2])
    if at[1] == 1:
        pack_reversed(weight, packed, panels[0], panels[1])
    dweight[:, span[0] : span[1]] = 0
    for n in range(len(dy)):
        lines = max(begin - n * rows, 0), min(end - n * rows, rows)
        into = max(top - n * height, 0), min(bottom - n * height, height)
        if lines[0] >= lines[1] and (len(dx) == 0 or into[0] >= into[1]):
            continue
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
            flat = not frame.size and kernel_rows * kernel_columns * stride[0] * stride[1] == 1
            if lines[0] < lines[1]:
                if dbias.size:
                    _add_pixels(gradient, corner, lines, dy.shape[2], span, dbias[g * filters : (g + 1) * filters])
                _weight_gradient(
                    image, gradient, corner, dweight[g], (lines[0], lines[1], dy.shape[2]), span, stride, flat
                )
            if len(dx) and into[0] < into[1]:
                box = (g * channels, into[0], into[1], panels[0], panels[1])
                _input_gradient(gradient, packed[:, :, g], dx[n], dweight.shape, padding, margin, box, flat)


@njit(nogil=True, cache=True, parallel=True)
def _differentiate_in_parts(
    saved: Arrays, dy: Array, weights: Arrays, gradients: Arrays, frames: Arrays, places: Places, grid: Pair
) -> None:
    # numba passes arrays and numbers to the threads, not tuples of them
    (x, y), (dweights, dbiases, dx), (images, dzs), (stride, padding, margin) = saved, gradients, frames, places
    (weight, packed), (down, across) = weights, grid
    for part in prange(down * across):
        into, memory = (dweights[part // across], dbiases[part // across], dx), (images[part], dzs[part])
        matrices = (weight, packed)
        differentiate((x, y), dy, matrices, into, memory, (stride, padding, margin), (part, down, across))


@njit(nogil=True, cache=True)
def _add_pixels(gradient: Array, corner: Pair, lines: Pair, columns: int, span: Pair, dbias: Array) -> None:
    total = np.zeros(span[1] - span[0], dbias.dtype)
    for p in range(lines[0], lines[1]):
        for q in range(columns):
            pixel = gradient[corner[0] + p, corner[1] + q, span[0] : span[1]]
            for j in range(len(total)):
                total[j] += pixel[j]
    dbias[span[0] : span[1]] += total


@njit(nogil=True, cache=True)
def _weight_gradient(
    image: Array, gradient: Array, corner: Pair, dweight: Array, lines: Shape, span: Pair, stride: Pair, flat: bool
) -> None:
    """Add an image's contribution to filters ``span`` of dweight (K, R, S, C).

    ``lines``: first and last row of the gradient, and its columns; rows follow each other in memory if ``flat``.
    Tile rows are filters, tile columns a window's row.
    """
    _, taps, _, channels = dweight.shape
    run, wide, item = dweight.shape[2] * channels, image.shape[1], image.itemsize
    floor = dweight.dtype.type(-np.inf)
    width = VECTORS * REGISTER_BYTES // item
    pieces, size, larger = divide_rows(span[1] - span[0])
    # All taps read the same few rows before the next ones: these come from the cache then, not from memory.
    row = (stride[0] * wide * image.shape[2] + gradient.shape[1] * gradient.shape[2]) * item
    step = max(CACHED_BYTES // row, 1)
    for p in range(lines[0], lines[1], step):
        outer, inner = min(step, lines[1] - p), lines[2]
        if flat:
            outer, inner = 1, outer * inner
        k = span[0]
        for piece in range(pieces):
            height = size + (piece < larger)
            for r in range(taps):
                for j in range(0, run, width):
                    shape = (height, min(width, run - j), outer, inner)
                    first = gradient[corner[0] + p, corner[1]].ctypes.data + k * item
                    left = (first, 1, gradient.shape[1] * gradient.shape[2], gradient.shape[2])
                    origin = image.ctypes.data + ((p * stride[0] + r) * wide * channels + j) * item
                    c = (dweight.ctypes.data + ((k * taps + r) * run + j) * item, taps * run)
                    tile(shape, left, (origin, stride[0] * wide * channels, stride[1] * channels), c, c, floor)
            k += height


@njit(nogil=True, cache=True)
def _input_gradient(
    gradient: Array, packed: Array, dx: Array, weights: Shape, padding: Pair, margin: Pair, box: Counts, flat: bool
) -> None:
    """Overwrite the ``box`` of an image's gradient: first channel, first and last row, first and last panel.

    ``packed`` is (a, b, panels, terms, width).
    """
    channel, first, last, low, high = box
    _, width, total = dx.shape
    vertical, horizontal, _, _, many = packed.shape
    _, filters, kernel_rows, kernel_columns, channels = weights
    wide, item = gradient.shape[1], dx.itemsize
    floor = dx.dtype.type(-np.inf)
    zeros = np.zeros(many, dx.dtype)
    # All panels read the same few rows of the gradient from the cache. They begin at multiples of the stride.
    step = max(CACHED_BYTES // 2 // (wide * filters * item), 1) * vertical
    for start in range(first, last, step):
        stop = min(start + step, last)
        # Pixels whose place has the same remainder (a, b) by the stride meet the same taps.
        for a in range(vertical):
            taps = max(-(-(kernel_rows - a) // vertical), 0)
            for b in range(horizontal):
                others = max(-(-(kernel_columns - b) // horizontal), 0)
                begin = (b - padding[1]) % horizontal
                if begin >= width:
                    continue
                lines, columns = stop, (width - 1 - begin) // horizontal + 1
                if flat:
                    lines, columns = start + 1, (stop - start) * width
                pieces, size, larger = divide_rows(columns)
                for panel in range(low, high):
                    for h in range(start + (a - padding[0] - start) % vertical, lines, vertical):
                        t = (h + padding[0]) // vertical + margin[0] - (taps - 1)
                        w = begin
                        for piece in range(pieces):
                            height = size + (piece < larger)
                            u = (w + padding[1]) // horizontal + margin[1] - (others - 1)
                            shape = (height, min(many, channels - panel * many), taps, others * filters)
                            source = gradient.ctypes.data + (t * wide + u) * filters * item
                            left = (source, filters, wide * filters, 1)
                            right = (packed[a, b, panel].ctypes.data, others * filters * many, many)
                            into = dx.ctypes.data + ((h * width + w) * total + channel + panel * many) * item
                            tile(shape, left, right, (zeros.ctypes.data, 0), (into, horizontal * total), floor)
                            w += height * horizontal


class Convolution(Op[WindowGeometry]):
    """Every convolution, one image at a time, so that copies for padding or groups stay in the cache."""

    def __init__(self, geometry: WindowGeometry) -> None:
        super().__init__(geometry)
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
        y = allocate((len(x), *geometry.output), x.dtype)
        grouped = weights.weight.reshape(geometry.groups, self._filters, -1, self._channels)
        packed = allocate((geometry.groups, *panels(grouped.shape[2] * self._channels, self._filters, x)), x.dtype)
        start = np.zeros(geometry.output[2], x.dtype) if weights.bias is None else weights.bias
        floor = x.dtype.type(0 if geometry.relu else -math.inf)
        places = (geometry.kernel, geometry.stride, geometry.padding)
        across = self._divided(x, y, grouped.size, packed.shape[1])
        if across[0] > 1:
            pack(grouped, packed, 0, packed.shape[1])
        count = math.prod(across)
        frames = allocate((count, *self._frame), x.dtype)
        arguments = ((x, y), (grouped, packed, start))
        if count == 1:
            _forward(*arguments, frames[0], places, floor, (0, *across))
        else:
            _forward_in_parts(*arguments, frames, places, floor, across)
        self._saved = (x, y if geometry.relu else allocate((0, *geometry.output), x.dtype))
        return y

    def backward(self, dy: Array, weights: Weights, needs_dx: bool) -> Array | None:
        geometry, (weight, _, dweight, dbias) = self._geometry, weights
        (x, y), self._saved = self._saved, ()
        grouped = (geometry.groups, self._filters, *geometry.kernel, self._channels)
        dx = allocate((len(x) if needs_dx else 0, *geometry.image), x.dtype)
        taps = (self._margin[0] + 1) * (self._margin[1] + 1)
        residues = geometry.stride if needs_dx else (0, 0)
        terms = panels(taps * self._filters, self._channels, x)
        packed = allocate((*residues, geometry.groups, *terms), x.dtype)
        across = self._divided(x, dy, weight.size, panels(1, self._filters, x)[0])
        if across[0] > 1:
            pack_reversed(weight.reshape(grouped), packed, 0, terms[0])
        dbiases = np.zeros((across[0], 0 if dbias is None else len(dbias)), x.dtype)
        count = math.prod(across)
        frames = tuple(allocate((count, *shape), x.dtype) for shape in (self._frame, self._gradient_frame))
        places = (geometry.stride, geometry.padding, self._margin)
        arguments = ((x, y), dy, (weight.reshape(grouped), packed))
        whole = dweight.reshape(1, *grouped)
        dweights = whole if across[0] == 1 else allocate((across[0], *grouped), x.dtype)
        if count == 1:
            into, memory = (dweights[0], dbiases[0], dx), (frames[0][0], frames[1][0])
            differentiate(*arguments, into, memory, places, (0, *across))
        else:
            _differentiate_in_parts(*arguments, (dweights, dbiases, dx), frames, places, across)
        if across[0] > 1:
            add_parts(dweights, whole[0])
        if dbias is not None:
            dbias[...] = dbiases.sum(axis=0)
        return dx if needs_dx else None

    def _divided(self, x: Array, y: Array, weights: int, panels: int) -> Pair:
        """Return how many parts divide the lines, and how many the panels."""
        lines, products = len(y) * y.shape[1], y.size * (weights // y.shape[3])
        parts = number(lines * panels, products // PRODUCTS)
        return grid(parts, lines, panels, weights, x.size + y.size, products)


def add_parts(parts: Array, total: Array) -> None:
    """Set ``total`` to the sum over the first axis of ``parts``."""
    np.add(parts[0], parts[1], out=total)
    for other in parts[2:]:
        total += other


def _needed(frame: Shape, image: Shape) -> Shape:
    """Return the shape of a frame, or that of an empty array if the image needs none."""
    return (0, 0, 0) if frame == image else frame


@njit(nogil=True, cache=True)
def _forward(images: Arrays, weights: Arrays, frame: Array, places: Places, floor: float, at: Counts) -> None:
    """Fill a part of the outputs; ``at`` as in :func:`differentiate`.

    ``images``: inputs and outputs. ``weights``: the layer's, memory for the packed ones, and biases.
    """
    (x, y), (weight, packed, bias), (kernel, stride, padding) = images, weights, places
    groups, count, terms, width = packed.shape
    _, rows, columns, filters = y.shape
    item, each = y.itemsize, filters // groups
    run = terms // kernel[0]
    channels = run // kernel[1]
    wide = frame.shape[1] if frame.size else x.shape[2]
    begin, end = share(len(y) * rows, at[0] // at[2], at[1])
    first, last = share(count, at[0] % at[2], at[2])
    if at[1] == 1:
        pack(weight, packed, first, last)
    flat = not frame.size and kernel[0] * kernel[1] * stride[0] * stride[1] == 1
    # All panels read the same few rows of the image from the cache.
    step = max(CACHED_BYTES // 2 // (stride[0] * wide * channels * item), 1)
    for n in range(begin // rows, -(-end // rows)):
        top, bottom = max(begin - n * rows, 0), min(end - n * rows, rows)
        for g in range(groups):
            origin = x[n].ctypes.data
            if frame.size:
                high = top * stride[0]
                to = frame[high : (bottom - 1) * stride[0] + kernel[0]]
                copy_region(x[n], g * channels, high - padding[0], -padding[1], to)
                origin = frame.ctypes.data
            for start in range(top, bottom, step):
                lines, length = min(step, bottom - start), columns
                if flat:
                    lines, length = 1, lines * columns
                pieces, size, larger = divide_rows(length)
                for panel in range(first, last):
                    k = g * each + panel * width
                    for p in range(start, start + lines):
                        q = 0
                        for piece in range(pieces):
                            height = size + (piece < larger)
                            shape = (height, min(width, each - panel * width), kernel[0], run)
                            source = origin + (p * stride[0] * wide + q * stride[1]) * channels * item
                            left = (source, stride[1] * channels, wide * channels, 1)
                            right = (packed[g, panel].ctypes.data, run * width, width)
                            into = y.ctypes.data + (((n * rows + p) * columns + q) * filters + k) * item
                            tile(shape, left, right, (bias.ctypes.data + k * item, 0), (into, filters), floor)
                            q += height


@njit(nogil=True, cache=True, parallel=True)
def _forward_in_parts(
    images: Arrays, weights: Arrays, frames: Array, places: Places, floor: float, grid: Pair
) -> None:
    (x, y), (weight, packed, bias), (kernel, stride, padding), (down, across) = images, weights, places, grid
    for part in prange(down * across):
        at, arguments = (part, down, across), ((x, y), (weight, packed, bias))
        _forward(*arguments, frames[part], (kernel, stride, padding), floor, at)
