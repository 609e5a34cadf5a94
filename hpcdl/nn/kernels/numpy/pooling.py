"""Pooling, one offset within the window at a time over all windows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.memory import lend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Blob, PoolingGeometry


class Frame:
    """Images in a frame of ``fill`` that makes every window complete; without need of a frame, themselves."""

    def __init__(self, geometry: PoolingGeometry, fill: float) -> None:
        self._geometry = geometry
        height, width, channels = geometry.image
        rows, columns, _ = geometry.output
        # Rounded down, the last window ends before the padding does; rounded up, behind it.
        framed = (
            max((rows - 1) * geometry.stride[0] + geometry.kernel[0], height + geometry.padding[0]),
            max((columns - 1) * geometry.stride[1] + geometry.kernel[1], width + geometry.padding[1]),
            channels,
        )
        self._is_needed = framed != geometry.image
        self._framed = framed
        self._fill = fill

    def put(self, x: Array) -> Array:
        """Return the images within the frame."""
        if not self._is_needed:
            return x
        framed = lend((len(x), *self._framed), x.dtype)
        framed[...] = self._fill
        self._inside(framed)[...] = x
        return framed

    def empty(self, batch: int) -> Array:
        """Return zeros of the framed size."""
        framed = lend((batch, *self._framed), self._geometry.dtype)
        framed[...] = 0
        return framed

    def take(self, framed: Array) -> Array:
        """Return the images without the frame."""
        if not self._is_needed:
            return framed
        image = lend((len(framed), *self._geometry.image), framed.dtype)
        image[...] = self._inside(framed)
        return image

    def offsets(self, framed: Array) -> Iterator[Array]:
        """Yield, for each offset in the window row by row, that pixel of every window: views (N, P, Q, C)."""
        (vertical, horizontal), (rows, columns, _) = self._geometry.stride, self._geometry.output
        for r in range(self._geometry.kernel[0]):
            for s in range(self._geometry.kernel[1]):
                yield framed[
                    :,
                    r : r + (rows - 1) * vertical + 1 : vertical,
                    s : s + (columns - 1) * horizontal + 1 : horizontal,
                ]

    def _inside(self, framed: Array) -> Array:
        top, left = self._geometry.padding
        height, width, _ = self._geometry.image
        return framed[:, top : top + height, left : left + width]


class MaxPooling:
    """The largest pixel of each window; a window with a NaN gives NaN, so that divergence is seen."""

    def __init__(self, geometry: PoolingGeometry) -> None:
        self._frame = Frame(geometry, -np.inf)
        self._gradient_frame = Frame(geometry, 0.0)
        self._output = geometry.output
        self._kept: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._kept = ()
        framed, y = self._frame.put(x), lend((len(x), *self._output), x.dtype)
        y[...] = -np.inf
        for pixels in self._frame.offsets(framed):
            np.maximum(y, pixels, out=y)
        self._kept = (framed, y)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        (framed, y), self._kept = self._kept, ()
        hit, free, chosen = lend(dy.shape, "bool"), lend(dy.shape, "bool"), lend(dy.shape, dy.dtype)
        free[...] = True
        gradient = self._gradient_frame.empty(len(dy))
        for pixels, dpixels in zip(
            self._frame.offsets(framed), self._gradient_frame.offsets(gradient), strict=True
        ):
            np.equal(pixels, y, out=hit)
            hit &= free
            free ^= hit
            np.multiply(dy, hit, out=chosen)
            np.add(dpixels, chosen, out=dpixels)
        return self._gradient_frame.take(gradient)


class AveragePooling:
    """The mean of each window, divided by its size clipped to the padded image, as Caffe does."""

    def __init__(self, geometry: PoolingGeometry) -> None:
        self._frame = Frame(geometry, 0.0)
        self._gradient_frame = Frame(geometry, 0.0)
        self._output = geometry.output
        self._share = shares(geometry)[:, :, np.newaxis]

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        y = lend((len(x), *self._output), x.dtype)
        y[...] = 0
        for pixels in self._frame.offsets(self._frame.put(x)):
            y += pixels
        y *= self._share
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        shared = lend(dy.shape, dy.dtype)
        np.multiply(dy, self._share, out=shared)
        gradient = self._gradient_frame.empty(len(dy))
        for pixels in self._gradient_frame.offsets(gradient):
            np.add(pixels, shared, out=pixels)
        return self._gradient_frame.take(gradient)


class GlobalAverage:
    """The mean of each channel over the image."""

    def __init__(self, geometry: Blob) -> None:
        height, width, channels = geometry.shape
        self._pixels = height * width
        self._channels = channels
        self._shape = geometry.shape

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        y = lend((len(x), self._channels), x.dtype)
        np.mean(x, axis=(1, 2), out=y)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        dx = lend((len(dy), *self._shape), dy.dtype)
        np.divide(dy[:, np.newaxis, np.newaxis], self._pixels, out=dx)
        return dx


def shares(geometry: PoolingGeometry) -> Array:
    """What a pixel counts in each window's average, (P, Q): one by the window's size, clipped as Caffe does."""
    vertical, horizontal = (
        _clipped(
            geometry.output[i],
            geometry.kernel[i],
            geometry.stride[i],
            geometry.image[i] + 2 * geometry.padding[i],
        )
        for i in range(2)
    )
    share: Array = (1 / np.outer(vertical, horizontal)).astype(geometry.dtype)
    return share


def _clipped(count: int, kernel: int, stride: int, padded: int) -> list[int]:
    """Extents of the windows along one direction, up to the end of the padded image."""
    return [min(i * stride + kernel, padded) - i * stride for i in range(count)]
