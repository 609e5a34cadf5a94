"""Direct convolution in register tiles over the image; windows are not copied.

A row of a window is S C contiguous numbers in an NHWC image. So a tile of the product

    y[pixels, filters] = sum over r of x[pixels' rows r, S C] weight[r, S C, filters]

reads the image through strides (Georganas et al. 2018, arXiv 1808.05567). Both gradients use the same tile with
other strides.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import njit

from hpcdl.nn.kernels.numba.convolution_gradients import differentiate
from hpcdl.nn.kernels.numba.packing import copy_to_frame, pack, pack_reversed, panels
from hpcdl.nn.kernels.numba.tile import divide_rows, tile
from hpcdl.nn.kernels.numba.vectors import REGISTER_BYTES
from hpcdl.nn.kernels.numpy.activation_pool import allocate
from hpcdl.nn.threads import parallel_ranges

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import ConvolutionGeometry, Shape

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
        """See :class:`hpcdl.nn.ops.Affine`."""
        self._saved = ()
        geometry = self._geometry
        y = allocate((len(x), *self._output), x.dtype)
        grouped = weight.reshape(geometry.groups, self._filters, -1, self._channels)
        packed = allocate((geometry.groups, *panels(grouped.shape[2] * self._channels, self._filters, x)), x.dtype)
        pack(grouped, packed)
        start = np.zeros(geometry.output[2], x.dtype) if bias is None else bias
        images, outputs = x.reshape(len(x), *geometry.image), y.reshape(len(y), *geometry.output)
        floor = x.dtype.type(0 if geometry.relu else -math.inf)

        def part(i: int, j: int) -> None:
            frame = allocate(self._frame, x.dtype)
            places = (geometry.kernel, geometry.stride, geometry.padding)
            _forward(images[i:j], packed, start, outputs[i:j], frame, *places, floor)

        parallel_ranges(len(x), part, elements=x.size)
        self._saved = (x, y if geometry.relu else allocate((0, *geometry.output), x.dtype))
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
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
        run = geometry.kernel[1] * self._channels
        is_transposed = _filled(self._filters, x) > _filled(run, x)
        partial = (geometry.groups, geometry.kernel[0], run, self._filters) if is_transposed else (0, 0, 0, 0)

        def part(i: int, j: int) -> tuple[Array, Array]:
            dw = dweight if i == 0 else allocate(dweight.shape, x.dtype)
            db = np.empty(0 if dbias is None else len(dbias), x.dtype)
            differentiate(
                images[i:j], outputs[i:j], gradients[i:j], packed, dw.reshape(grouped),
                allocate(partial, x.dtype), db, dx[i:j], allocate(self._frame, x.dtype),
                allocate(self._gradient_frame, x.dtype), geometry.stride, geometry.padding, self._margin,
            )  # fmt: skip
            return dw, db

        add_parts(parallel_ranges(len(dy), part, elements=dy.size), dweight, dbias)
        return dx.reshape(x.shape) if needs_dx else None


def add_parts(parts: list[tuple[Array, Array]], dweight: Array, dbias: Array | None) -> None:
    """Add the weight gradients of all parts of the batch to ``dweight``, the first part's; sum all dbias."""
    for other, _ in parts[1:]:
        dweight += other
    if dbias is not None:
        dbias[...] = sum(bias for _, bias in parts)


def _in_one_row(geometry: ConvolutionGeometry) -> ConvolutionGeometry:
    """Return an equivalent 1x1 convolution on images of one row; long rows fill tiles better."""
    height, width, channels = geometry.image
    image, output = (1, height * width, channels), (1, height * width, geometry.output[2])
    return replace(geometry, image=image, output=output)


def _needed(frame: Shape, image: Shape) -> Shape:
    return NO_FRAME if frame == image else frame


def _filled(outputs: int, like: Array) -> float:
    """Return the fraction of register lanes that ``outputs`` numbers fill."""
    lane_count = REGISTER_BYTES // like.itemsize
    return outputs / (-(-outputs // lane_count) * lane_count)


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
    pieces, size, larger = divide_rows(columns)
    for n in range(images):
        for g in range(groups):
            origin = x[n].ctypes.data
            if frame.size:
                copy_to_frame(x[n], g * channels, frame, padding[0], padding[1])
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
