"""Affine ops: convolution, matrix products and locally connected layers, with a ReLU where a layer has one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hpcdl.nn.geometry import PoolingGeometry
from hpcdl.nn.kernels.numpy.activation_pool import allocate
from hpcdl.nn.kernels.numpy.pooling import Frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import ConvolutionGeometry, LinearGeometry, LocallyConnectedGeometry
    from hpcdl.nn.ops import Affine


def channel_sum(x: Array) -> Array:
    """Sum (N, ..., C) to (C,): within each image by BLAS, then over images, which limits rounding errors."""
    n, channels = len(x), x.shape[-1]
    pixels = x[0, ..., 0].size if n else 1
    per_image: Array = np.ones((1, pixels), x.dtype) @ x.reshape(n, pixels, channels)
    total: Array = per_image.sum(axis=(0, 1))
    return total


class Pointwise:
    """Convolution with kernel 1, stride 1 and no padding; groups are allowed."""

    def __init__(self, geometry: ConvolutionGeometry) -> None:
        self._channels = geometry.image[2] // geometry.groups
        self._filters = geometry.output[2] // geometry.groups
        self._groups = geometry.groups
        self._output = geometry.output
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        self._saved = (x,)
        y = allocate((len(x), *self._output), x.dtype)
        pixels, out = _matrix(x), _matrix(y)
        for channels, filters in self._slices():
            np.matmul(pixels[:, channels], _matrix(weight[filters]).T, out=out[:, filters])
        if bias is not None:
            out += bias
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        (x,), self._saved = self._saved, ()
        pixels, gradient = _matrix(x), _matrix(dy)
        if dbias is not None:
            dbias[...] = channel_sum(dy)
        for channels, filters in self._slices():
            np.matmul(gradient[:, filters].T, pixels[:, channels], out=_matrix(dweight[filters]))
        if not needs_dx:
            return None
        dx = allocate(x.shape, dy.dtype)
        for channels, filters in self._slices():
            np.matmul(gradient[:, filters], _matrix(weight[filters]), out=_matrix(dx)[:, channels])
        return dx

    def _slices(self) -> Iterator[tuple[slice, slice]]:
        """Yield each group's channels and filters."""
        for group in range(self._groups):
            yield (
                slice(group * self._channels, (group + 1) * self._channels),
                slice(group * self._filters, (group + 1) * self._filters),
            )


def _matrix(image: Array) -> Array:
    """Return pixels or filters as rows: a view."""
    return image.reshape(-1, image.shape[-1])


CHUNK_BYTES = 1 << 20
"""Bytes of windows copied at a time; they stay in a core's cache until the product reads them."""

CHUNK_ROWS = 512
"""Minimum number of windows copied at a time; the weight gradient is read and written once per chunk."""


class Im2col:
    """Any convolution (Chellapilla et al. 2006), in chunks of whole images or of rows of one image.

    Forward: y = windows @ weight^T. Backward copies the windows again: dweight = sum over chunks of
    dy^T @ windows; dwindows = dy @ weight is added to the pixels of each window.
    """

    def __init__(self, geometry: ConvolutionGeometry) -> None:
        self._geometry = geometry
        (height, width, channels), (rows, columns, _) = geometry.image, geometry.output
        self._window = (*geometry.kernel, channels // geometry.groups)
        self._span = math.prod(self._window)
        padded = (height + 2 * geometry.padding[0], width + 2 * geometry.padding[1], channels)
        self._is_padded = geometry.padding != (0, 0)

        windows = max(CHUNK_BYTES // (self._span * np.dtype(geometry.dtype).itemsize), CHUNK_ROWS)
        self._images_per_chunk = windows // (rows * columns)
        self._rows_per_chunk = max(windows // columns, 1)

        self._padded = padded
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        self._saved = (padded := self._pad(x),)
        y = allocate((len(x), *self._geometry.output), x.dtype)
        for images, rows in self._chunks(len(x)):
            out = _pixels(y, images, rows)
            for windows, filters in self._groups(padded):
                columns = self._gather(windows[images, rows])
                np.matmul(columns, _flat(weight[filters]).T, out=out[:, filters])
            if bias is not None:
                out += bias
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        if dbias is not None:
            dbias[...] = channel_sum(dy)
        (x,), self._saved = self._saved, ()
        partial = allocate((len(weight) // self._geometry.groups, self._span), dy.dtype)
        dpadded = allocate(x.shape, dy.dtype) if needs_dx else None
        if dpadded is not None:
            dpadded[...] = 0
        dweight[...] = 0
        for images, rows in self._chunks(len(dy)):
            gradient = _pixels(dy, images, rows)
            for windows, filters in self._groups(x):
                columns = self._gather(windows[images, rows])
                np.matmul(gradient[:, filters].T, columns, out=partial)
                _flat(dweight[filters])[...] += partial
            if dpadded is not None:
                for windows, filters in self._groups(dpadded):
                    dcolumns = allocate((len(gradient), self._span), dy.dtype)
                    np.matmul(gradient[:, filters], _flat(weight[filters]), out=dcolumns)
                    self._scatter(dcolumns, windows[images, rows])
        return None if dpadded is None else self._crop(dpadded)

    def _chunks(self, batch: int) -> Iterator[tuple[slice, slice]]:
        """Yield (images, output rows), contiguous chunks: several whole images or rows of one image."""
        rows = self._geometry.output[0]
        images_per_chunk, rows_per_chunk = max(self._images_per_chunk, 1), self._rows_per_chunk
        if self._images_per_chunk:
            rows_per_chunk = rows
        for n in range(0, batch, images_per_chunk):
            for p in range(0, rows, rows_per_chunk):
                yield slice(n, min(n + images_per_chunk, batch)), slice(p, min(p + rows_per_chunk, rows))

    def _groups(self, image: Array) -> Iterator[tuple[Array, slice]]:
        """Yield, for each group, a view of its windows (N, P, Q, R, S, C / groups) and its slice of filters."""
        geometry = self._geometry
        rows, columns, filters = geometry.output
        channels, share = self._window[-1], filters // geometry.groups
        n, h, w, c = image.strides
        strides = (n, h * geometry.stride[0], w * geometry.stride[1], h, w, c)
        for group in range(geometry.groups):
            origin = image[..., group * channels : (group + 1) * channels]
            windows = as_strided(origin, (len(image), rows, columns, *self._window), strides)
            yield windows, slice(group * share, (group + 1) * share)

    def _gather(self, windows: Array) -> Array:
        columns = allocate((math.prod(windows.shape[:3]), self._span), windows.dtype)
        columns.reshape(windows.shape)[...] = windows
        return columns

    def _scatter(self, columns: Array, windows: Array) -> None:
        """Add columns to the pixels of ``windows``; windows overlap, but pixels of one offset are distinct."""
        source = columns.reshape(windows.shape)
        for r in range(windows.shape[3]):
            for s in range(windows.shape[4]):
                windows[:, :, :, r, s] += source[:, :, :, r, s]

    def _pad(self, x: Array) -> Array:
        if not self._is_padded:
            return x
        padded = allocate((len(x), *self._padded), x.dtype)
        padded[...] = 0
        self._inside(padded)[...] = x
        return padded

    def _crop(self, dpadded: Array) -> Array:
        if not self._is_padded:
            return dpadded
        dx = allocate((len(dpadded), *self._geometry.image), dpadded.dtype)
        dx[...] = self._inside(dpadded)
        return dx

    def _inside(self, padded: Array) -> Array:
        top, left = self._geometry.padding
        height, width, _ = self._geometry.image
        return padded[:, top : top + height, left : left + width]


def _flat(weight: Array) -> Array:
    """Return the filters as rows, (K, R S C / groups)."""
    return weight.reshape(len(weight), -1)


def _pixels(image: Array, images: slice, rows: slice) -> Array:
    """Return the pixels of a chunk as rows, (n P Q, K): a view, because a chunk is contiguous."""
    return image[images, rows].reshape(-1, image.shape[-1])


def undivided(count: int, work: Callable[[int, int], Any], *, elements: int) -> Any:  # noqa: ARG001
    """Call work(0, count); BLAS divides its products itself."""
    work(0, count)


class Linear:
    """y = x weight^T + bias; dweight = dy^T x; dx = dy weight.

    ``divide``, as :func:`hpcdl.nn.threads.parallel_ranges`, divides products by outputs or inputs.
    """

    def __init__(self, geometry: LinearGeometry, divide: Callable[..., Any] = undivided) -> None:
        self._divide = divide
        self._outputs = geometry.outputs
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        self._saved = (x,)
        y = allocate((len(x), self._outputs), x.dtype)
        self._divide(len(weight), lambda i, j: np.matmul(x, weight[i:j].T, out=y[:, i:j]), elements=weight.size)
        if bias is not None:
            y += bias
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        (x,), self._saved = self._saved, ()
        self._divide(len(weight), lambda i, j: np.matmul(dy[:, i:j].T, x, out=dweight[i:j]), elements=weight.size)
        if dbias is not None:
            np.sum(dy, axis=0, out=dbias)
        if not needs_dx:
            return None
        dx = allocate((len(dy), weight.shape[1]), dy.dtype)
        inputs = weight.shape[1]
        self._divide(inputs, lambda i, j: np.matmul(dy, weight[:, i:j], out=dx[:, i:j]), elements=weight.size)
        return dx


class Rectified:
    """y = max(affine(x), 0), computed in the affine op's array; dz = dy where y > 0."""

    def __init__(self, affine: Affine) -> None:
        self._affine = affine
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        self._saved = ()
        y = self._affine.forward(x, weight, bias)
        np.maximum(y, 0, out=y)
        self._saved = (y,)
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        (y,), self._saved = self._saved, ()
        dz = allocate(dy.shape, dy.dtype)
        np.multiply(dy, np.greater(y, 0), out=dz)
        return self._affine.backward(dz, weight, dweight, dbias, needs_dx)


LOCAL_CHUNK_BYTES = 1 << 22
"""Bytes of windows copied at a time; large, because each chunk reads its weights once for the whole batch."""


class LocallyConnected:
    """At each position (p, q), over the batch: y = windows @ weight^T, a product (N, R S C) by (R S C, K).

    Chunks are whole rows of positions. Backward copies the windows again: dweight = dy^T @ windows, dwindows =
    dy @ weight, which is added to the pixels of each window.
    """

    def __init__(self, geometry: LocallyConnectedGeometry) -> None:
        self._geometry = geometry
        self._span = math.prod(geometry.kernel) * geometry.image[2]
        placed = PoolingGeometry(
            geometry.image,
            (*geometry.output[:2], geometry.image[2]),
            geometry.kernel,
            geometry.stride,
            geometry.padding,
            geometry.dtype,
        )
        self._frame = Frame(placed, 0.0)
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        self._saved = (framed := self._frame.put(x),)
        y = allocate((len(x), *self._geometry.output), x.dtype)
        for rows in self._chunks(len(x)):
            windows = self._gather(framed, rows)
            out = allocate((*windows.shape[:3], weight.shape[2]), x.dtype)
            np.matmul(windows, _filters_by_position(weight[rows]).swapaxes(2, 3), out=out)
            y[:, rows] = np.moveaxis(out, 2, 0)
        if bias is not None:
            y += bias
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        (framed,), self._saved = self._saved, ()
        if dbias is not None:
            np.sum(dy, axis=0, out=dbias)
        dframed = self._frame.empty(len(dy)) if needs_dx else None
        for rows in self._chunks(len(dy)):
            windows = self._gather(framed, rows)
            gradient = allocate((*windows.shape[:3], dy.shape[-1]), dy.dtype)
            gradient[...] = np.moveaxis(dy[:, rows], 0, 2)
            np.matmul(gradient.swapaxes(2, 3), windows, out=_filters_by_position(dweight[rows]))
            if dframed is not None:
                np.matmul(gradient, _filters_by_position(weight[rows]), out=windows)
                self._scatter(windows, dframed, rows)
        return None if dframed is None else self._frame.take(dframed)

    def _chunks(self, batch: int) -> Iterator[slice]:
        """Yield slices of output rows whose windows fit into LOCAL_CHUNK_BYTES."""
        rows, columns, _ = self._geometry.output
        row_bytes = max(batch, 1) * columns * self._span * np.dtype(self._geometry.dtype).itemsize
        step = max(LOCAL_CHUNK_BYTES // row_bytes, 1)
        for start in range(0, rows, step):
            yield slice(start, min(start + step, rows))

    def _gather(self, framed: Array, rows: slice) -> Array:
        """Copy the windows of some rows: (rows, Q, N, R S C)."""
        shape = (rows.stop - rows.start, self._geometry.output[1], len(framed))
        windows = allocate((*shape, self._span), framed.dtype)
        for offset, pixels in zip(self._offsets(windows), self._frame.offsets(framed), strict=True):
            offset[...] = np.moveaxis(pixels[:, rows], 0, 2)
        return windows

    def _scatter(self, windows: Array, framed: Array, rows: slice) -> None:
        """Add windows to their pixels; windows overlap, but pixels of one offset are distinct."""
        for offset, pixels in zip(self._offsets(windows), self._frame.offsets(framed), strict=True):
            into = pixels[:, rows]
            into += np.moveaxis(offset, 2, 0)

    def _offsets(self, windows: Array) -> Iterator[Array]:
        """Yield, for each offset within the window, the pixel of every window: views (rows, Q, N, C)."""
        channels = self._geometry.image[2]
        for start in range(0, self._span, channels):
            yield windows[..., start : start + channels]


def _filters_by_position(weight: Array) -> Array:
    """Return the filters of each position as rows, (rows, Q, K, R S C): a view."""
    return weight.reshape(*weight.shape[:3], -1)
