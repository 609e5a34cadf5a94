"""Ops on windows of images, pooling, convolution and locally connected layers; matrix products.

Pooling loops over the offsets within a window, vectorised over all windows; products read copies of windows.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Affine, Weights
from hpcdl.nn.geometry import Blob, LinearGeometry, WindowGeometry
from hpcdl.nn.kernels.numpy.activation_pool import Op, allocate
from hpcdl.nn.kernels.numpy.elementwise import channel_sum, rectified_gradient


class Frame:
    """Adds a border of value ``fill`` that completes every window; copies nothing if no border is needed."""

    def __init__(self, geometry: WindowGeometry, fill: float) -> None:
        self._geometry = geometry
        height, width, channels = geometry.image
        rows, columns, _ = geometry.output
        # with floor rounding the last window ends within the padding, with ceil rounding beyond it
        framed = (
            max((rows - 1) * geometry.stride[0] + geometry.kernel[0], height + geometry.padding[0]),
            max((columns - 1) * geometry.stride[1] + geometry.kernel[1], width + geometry.padding[1]),
            channels,
        )
        self._is_needed = framed != geometry.image
        self._framed = framed
        self._fill = fill

    def put(self, x: Array) -> Array:
        if not self._is_needed:
            return x
        framed = allocate((len(x), *self._framed), x.dtype)
        framed[...] = self._fill
        self._inside(framed)[...] = x
        return framed

    def empty(self, batch: int) -> Array:
        framed = allocate((batch, *self._framed), self._geometry.dtype)
        framed[...] = 0
        return framed

    def take(self, framed: Array) -> Array:
        if not self._is_needed:
            return framed
        image = allocate((len(framed), *self._geometry.image), framed.dtype)
        image[...] = self._inside(framed)
        return image

    def offsets(self, framed: Array) -> Iterator[Array]:
        """Yield, for each offset in the window row by row, the pixel of every window: views (N, P, Q, C)."""
        (vertical, horizontal), (rows, columns, _) = self._geometry.stride, self._geometry.output
        for r in range(self._geometry.kernel[0]):
            for s in range(self._geometry.kernel[1]):
                yield framed[
                    :,
                    r : r + (rows - 1) * vertical + 1 : vertical,
                    s : s + (columns - 1) * horizontal + 1 : horizontal,
                ]

    def windows(self, framed: Array) -> Array:
        """Return a view of all windows, which overlap: (N, P, Q, R, S, C)."""
        geometry, (n, h, w, c) = self._geometry, framed.strides
        shape = (len(framed), *geometry.output[:2], *geometry.kernel, framed.shape[3])
        # The frame has the padding, so that all windows lie in its memory.
        return as_strided(framed, shape, (n, h * geometry.stride[0], w * geometry.stride[1], h, w, c))

    def _inside(self, framed: Array) -> Array:
        top, left = self._geometry.padding
        height, width, _ = self._geometry.image
        return framed[:, top : top + height, left : left + width]


class MaxPooling(Op[WindowGeometry]):
    """Maximum of each window; a window that contains NaN gives NaN, so that divergence is visible."""

    def __init__(self, geometry: WindowGeometry) -> None:
        super().__init__(geometry)
        self._frame = Frame(geometry, -np.inf)

    def forward(self, x: Array) -> Array:
        self._saved = ()
        # np.maximum returns NaN if one of the two is: divergence stays visible
        framed, y = self._frame.put(x), allocate((len(x), *self._geometry.output), x.dtype)
        y[...] = -np.inf
        for pixels in self._frame.offsets(framed):
            np.maximum(y, pixels, out=y)
        self._saved = (framed, y)
        return y

    def backward(self, dy: Array) -> Array:
        (framed, y), self._saved = self._saved, ()
        hit, free, chosen = allocate(dy.shape, "bool"), allocate(dy.shape, "bool"), allocate(dy.shape, dy.dtype)
        # Only the first pixel that equals the maximum receives the gradient: ``free`` is False after it.
        free[...] = True
        gradient = self._frame.empty(len(dy))
        for pixels, dpixels in zip(self._frame.offsets(framed), self._frame.offsets(gradient), strict=True):
            np.equal(pixels, y, out=hit)
            hit &= free
            free ^= hit
            np.multiply(dy, hit, out=chosen)
            np.add(dpixels, chosen, out=dpixels)
        return self._frame.take(gradient)


class AveragePooling:
    """Mean of each window; the divisor is its size clipped to the padded image, as in Caffe."""

    def __init__(self, geometry: WindowGeometry) -> None:
        self._frame = Frame(geometry, 0.0)
        self._output = geometry.output
        # as in Caffe, windows are clipped to the padded image
        rows, columns = (
            np.minimum(kernel, size + 2 * padding - np.arange(windows) * stride)
            for windows, kernel, size, padding, stride in zip(
                geometry.output, geometry.kernel, geometry.image, geometry.padding, geometry.stride, strict=False
            )
        )
        self._share = (1 / np.outer(rows, columns)).astype(geometry.dtype)[:, :, np.newaxis]

    def forward(self, x: Array) -> Array:
        y = allocate((len(x), *self._output), x.dtype)
        y[...] = 0
        for pixels in self._frame.offsets(self._frame.put(x)):
            y += pixels
        y *= self._share
        return y

    def backward(self, dy: Array) -> Array:
        shared = allocate(dy.shape, dy.dtype)
        np.multiply(dy, self._share, out=shared)
        gradient = self._frame.empty(len(dy))
        for pixels in self._frame.offsets(gradient):
            np.add(pixels, shared, out=pixels)
        return self._frame.take(gradient)


class GlobalAverage:
    """Mean of each channel over the image."""

    def __init__(self, geometry: Blob) -> None:
        self._shape = geometry.shape
        self._pixels = geometry.shape[0] * geometry.shape[1]

    def forward(self, x: Array) -> Array:
        y = allocate((len(x), self._shape[2]), x.dtype)
        np.mean(x, axis=(1, 2), out=y)
        return y

    def backward(self, dy: Array) -> Array:
        dx = allocate((len(dy), *self._shape), dy.dtype)
        np.divide(dy[:, np.newaxis, np.newaxis], self._pixels, out=dx)
        return dx


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

    ``divide``, as :func:`hpcdl.nn.backend.parallel_ranges`, divides products by outputs or inputs.
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
        *places, length = windows.shape
        channels = self._geometry.image[2]
        parts = windows.reshape(*places, length // channels, channels)
        for number, pixels in enumerate(self._frame.offsets(framed)):
            into = pixels[:, rows]
            into += np.moveaxis(parts[..., number, :], 2, 0)
