"""1x1 convolution: a matrix product per pixel, without copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.activation_pool import allocate
from hpcdl.nn.kernels.numpy.channel_sum import channel_sum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import ConvolutionGeometry


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
