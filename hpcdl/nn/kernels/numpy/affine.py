"""Affine ops: convolution, matrix products and locally connected layers, with a ReLU where a layer has one."""

import math
from collections.abc import Callable, Iterator

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Affine, Weights
from hpcdl.nn.geometry import LinearGeometry, WindowGeometry
from hpcdl.nn.kernels.numpy.activation_pool import Op, allocate
from hpcdl.nn.kernels.numpy.elementwise import rectified_gradient
from hpcdl.nn.kernels.numpy.pooling import Frame


def channel_sum(x: Array) -> Array:
    """Sum (N, ..., C) to (C,): within each image by BLAS, then over images, which limits rounding errors."""
    n, channels = len(x), x.shape[-1]
    pixels = x[0, ..., 0].size if n else 1
    per_image: Array = np.ones((1, pixels), x.dtype) @ x.reshape(n, pixels, channels)
    total: Array = per_image.sum(axis=(0, 1))
    return total


CHUNK_BYTES = 1 << 20
"""Bytes of windows copied at a time; they stay in a core's cache until the product reads them."""
CHUNK_ROWS = 512
"""Minimum number of windows copied at a time; the weight gradient is read and written once per chunk."""


class Im2col(Op[WindowGeometry]):
    """Every convolution (Chellapilla et al. 2006), in chunks of whole images or of rows of one image.

    Forward: y = windows @ weight^T. Backward copies the windows again: dweight = sum over chunks of
    dy^T @ windows; dwindows = dy @ weight is added to the pixels of each window.
    """

    def __init__(self, geometry: WindowGeometry) -> None:
        super().__init__(geometry)
        self._frame = Frame(geometry, 0.0)
        self._channels = geometry.image[2] // geometry.groups
        self._span = math.prod(geometry.kernel) * self._channels
        rows, columns, _ = geometry.output
        windows = max(CHUNK_BYTES // (self._span * np.dtype(geometry.dtype).itemsize), CHUNK_ROWS)
        self._images_per_chunk = max(windows // (rows * columns), 1)
        self._rows_per_chunk = rows if windows >= rows * columns else max(windows // columns, 1)

    def forward(self, x: Array, weights: Weights) -> Array:
        self._saved = (framed := self._frame.put(x),)
        y = allocate((len(x), *self._geometry.output), x.dtype)
        rows = weights.weight.reshape(len(weights.weight), -1)
        for chunk in self._chunks(len(x)):
            out = y[chunk].reshape(-1, y.shape[-1])  # a view, because a chunk is contiguous
            for channels, filters in self._groups():
                windows = self._gather(framed, chunk, channels)
                np.matmul(windows, rows[filters].T, out=out[:, filters])
            if weights.bias is not None:
                out += weights.bias
        return y

    def backward(self, dy: Array, weights: Weights, needs_dx: bool) -> Array | None:
        if weights.dbias is not None:
            weights.dbias[...] = channel_sum(dy)
        (framed,), self._saved = self._saved, ()
        dframed = self._frame.empty(len(dy)) if needs_dx else None
        weights.dweight[...] = 0
        rows, drows = (array.reshape(len(array), -1) for array in (weights.weight, weights.dweight))
        for chunk in self._chunks(len(dy)):
            gradient = dy[chunk].reshape(-1, dy.shape[-1])
            for channels, filters in self._groups():
                columns = self._gather(framed, chunk, channels)
                drows[filters] += gradient[:, filters].T @ columns
                if dframed is not None:
                    # The windows have served: their gradients take their place, which is still in the cache.
                    np.matmul(gradient[:, filters], rows[filters], out=columns)
                    self._scatter(columns, dframed, chunk, channels)
        return None if dframed is None else self._frame.take(dframed)

    def _chunks(self, batch: int) -> Iterator[tuple[slice, slice]]:
        """Yield (images, output rows), contiguous chunks: several whole images or rows of one image."""
        rows = self._geometry.output[0]
        for n in range(0, batch, self._images_per_chunk):
            for p in range(0, rows, self._rows_per_chunk):
                yield slice(n, n + self._images_per_chunk), slice(p, p + self._rows_per_chunk)

    def _groups(self) -> Iterator[tuple[slice, slice]]:
        filters = self._geometry.output[2] // self._geometry.groups
        for group in range(self._geometry.groups):
            yield (
                slice(group * self._channels, (group + 1) * self._channels),
                slice(group * filters, (group + 1) * filters),
            )

    def _gather(self, framed: Array, chunk: tuple[slice, slice], channels: slice) -> Array:
        """Copy the windows of a chunk: (n P Q, R S C / groups)."""
        windows = self._frame.windows(framed[..., channels])[chunk]
        columns = allocate((math.prod(windows.shape[:3]), self._span), framed.dtype)
        columns.reshape(windows.shape)[...] = windows
        return columns

    def _scatter(self, columns: Array, framed: Array, chunk: tuple[slice, slice], channels: slice) -> None:
        """Add columns to the pixels of a chunk; windows overlap, but pixels of one offset are distinct."""
        for number, pixels in enumerate(self._frame.offsets(framed)):
            part = pixels[(*chunk, slice(None), channels)]
            part += columns.reshape(*part.shape[:3], -1, self._channels)[..., number, :]


def undivided(count: int, work: Callable[[int, int], object], *, elements: int) -> None:  # noqa: ARG001
    """Call work(0, count); BLAS divides its products itself."""
    work(0, count)


class Linear(Op[LinearGeometry]):
    """y = x weight^T + bias; dweight = dy^T x; dx = dy weight.

    ``divide``, as :func:`hpcdl.nn.threads.parallel_ranges`, divides products by outputs or inputs.
    """

    def __init__(self, geometry: LinearGeometry, divide: Callable[..., object] = undivided) -> None:
        super().__init__(geometry)
        self._divide = divide

    def forward(self, x: Array, weights: Weights) -> Array:
        self._saved, weight = (x,), weights.weight
        y = allocate((len(x), self._geometry.outputs), x.dtype)
        self._divide(len(weight), lambda i, j: np.matmul(x, weight[i:j].T, out=y[:, i:j]), elements=weight.size)
        if weights.bias is not None:
            y += weights.bias
        return y

    def backward(self, dy: Array, weights: Weights, needs_dx: bool) -> Array | None:
        (x,), self._saved = self._saved, ()
        weight, _, dweight, dbias = weights
        self._divide(len(weight), lambda i, j: np.matmul(dy[:, i:j].T, x, out=dweight[i:j]), elements=weight.size)
        if dbias is not None:
            np.sum(dy, axis=0, out=dbias)
        if not needs_dx:
            return None
        inputs = weight.shape[1]
        dx = allocate((len(dy), inputs), dy.dtype)
        self._divide(inputs, lambda i, j: np.matmul(dy, weight[:, i:j], out=dx[:, i:j]), elements=weight.size)
        return dx


class Rectified:
    """y = max(affine(x), 0), computed in the affine op's array; dz = dy where y > 0."""

    def __init__(self, affine: Affine) -> None:
        self._affine = affine
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array, weights: Weights) -> Array:
        # emptied first: the old outputs' memory can serve as the new ones'
        self._saved = ()
        y = self._affine.forward(x, weights)
        np.maximum(y, 0, out=y)
        self._saved = (y,)
        return y

    def backward(self, dy: Array, weights: Weights, needs_dx: bool) -> Array | None:
        (y,), self._saved = self._saved, ()
        return self._affine.backward(rectified_gradient(dy, y), weights, needs_dx)


LOCAL_CHUNK_BYTES = 1 << 22
"""Bytes of windows copied at a time; large, because each chunk reads its weights once for the whole batch."""


class LocallyConnected(Op[WindowGeometry]):
    """At each position (p, q), over the batch: y = windows @ weight^T, a product (N, R S C) by (R S C, K).

    Chunks are whole rows of positions. Backward: dweight = dy^T @ windows, dwindows = dy @ weight.
    """

    def __init__(self, geometry: WindowGeometry) -> None:
        super().__init__(geometry)
        self._span = math.prod(geometry.kernel) * geometry.image[2]
        self._frame = Frame(geometry, 0.0)

    def forward(self, x: Array, weights: Weights) -> Array:
        self._saved = (framed := self._frame.put(x),)
        y = allocate((len(x), *self._geometry.output), x.dtype)
        filters = weights.weight.reshape(*self._geometry.output, -1)
        for rows in self._chunks(len(x)):
            windows = self._gather(framed, rows)
            out = allocate((*windows.shape[:3], y.shape[3]), x.dtype)
            np.matmul(windows, filters[rows].swapaxes(2, 3), out=out)
            y[:, rows] = np.moveaxis(out, 2, 0)
        if weights.bias is not None:
            y += weights.bias
        return y

    def backward(self, dy: Array, weights: Weights, needs_dx: bool) -> Array | None:
        (framed,), self._saved = self._saved, ()
        if weights.dbias is not None:
            np.sum(dy, axis=0, out=weights.dbias)
        dframed = self._frame.empty(len(dy)) if needs_dx else None
        filters, dfilters = (
            array.reshape(*self._geometry.output, -1) for array in (weights.weight, weights.dweight)
        )
        for rows in self._chunks(len(dy)):
            windows = self._gather(framed, rows)
            # Position before image: a matrix product per position then has the whole batch as its rows.
            gradient = allocate((*windows.shape[:3], dy.shape[-1]), dy.dtype)
            gradient[...] = np.moveaxis(dy[:, rows], 0, 2)
            np.matmul(gradient.swapaxes(2, 3), windows, out=dfilters[rows])
            if dframed is not None:
                np.matmul(gradient, filters[rows], out=windows)
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
        pixels = np.moveaxis(self._frame.windows(framed)[:, rows], 0, 2)
        windows = allocate((*pixels.shape[:3], self._span), framed.dtype)
        windows.reshape(pixels.shape)[...] = pixels
        return windows

    def _scatter(self, windows: Array, framed: Array, rows: slice) -> None:
        """Add windows to their pixels; windows overlap, but pixels of one offset are distinct."""
        parts = windows.reshape(*windows.shape[:3], -1, self._geometry.image[2])
        for number, pixels in enumerate(self._frame.offsets(framed)):
            into = pixels[:, rows]
            into += np.moveaxis(parts[..., number, :], 2, 0)
