"""Pooling: a loop over the offsets within a window, vectorised over all windows."""

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import Blob, WindowGeometry
from hpcdl.nn.kernels.numpy.activation_pool import Op, allocate


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
