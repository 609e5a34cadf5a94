"""1x1 convolution: a matrix product per pixel, nothing copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.buffer import Buffer
from hpcdl.nn.kernels.numpy.channel_sum import channel_sum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import ConvolutionGeometry


class Pointwise:
    """Convolution with kernel 1, stride 1 and no padding, with groups or without."""

    def __init__(self, geometry: ConvolutionGeometry) -> None:
        self._channels = geometry.image[2] // geometry.groups
        self._filters = geometry.output[2] // geometry.groups
        self._groups = geometry.groups
        self._x = np.empty((0, *geometry.image), geometry.dtype)
        self._y = Buffer(geometry.output, geometry.dtype)
        self._dx = Buffer(geometry.image, geometry.dtype)

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        self._x = x
        y = self._y.rows(len(x))
        pixels, out = _matrix(x), _matrix(y)
        for channels, filters in self._slices():
            np.matmul(pixels[:, channels], _matrix(weight[filters]).T, out=out[:, filters])
        if bias is not None:
            out += bias
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, wanted: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        pixels, gradient = _matrix(self._x), _matrix(dy)
        if dbias is not None:
            dbias[...] = channel_sum(dy)
        for channels, filters in self._slices():
            np.matmul(gradient[:, filters].T, pixels[:, channels], out=_matrix(dweight[filters]))
        if not wanted:
            return None
        dx = self._dx.rows(len(dy))
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
    """Pixels (or filters) as rows: a view."""
    return image.reshape(-1, image.shape[-1])
