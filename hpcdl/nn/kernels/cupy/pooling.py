"""Pooling; gradients are gathered, so that each is added up in one order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hpcdl.nn.kernels.cupy.device import over_rows
from hpcdl.nn.precision import carrier

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Blob, PoolingGeometry
    from hpcdl.nn.kernels.cupy.device import Device, Spread


class _Pooling:
    """Pooling's sizes in the kernels' order, and arrays for it."""

    def __init__(self, device: Device, geometry: PoolingGeometry) -> None:
        self._device = device
        self._geometry = geometry
        self._sizes = (
            *geometry.image,
            *geometry.output[:2],
            *geometry.kernel,
            *geometry.stride,
            *geometry.padding,
        )

    def _outputs(self, batch: int) -> tuple[Array, Spread]:
        return self._room(batch, self._geometry.output)

    def _inputs(self, batch: int) -> tuple[Array, Spread]:
        return self._room(batch, self._geometry.image)

    def _room(self, batch: int, image: tuple[int, int, int]) -> tuple[Array, Spread]:
        dtype = self._geometry.dtype
        spread = over_rows(batch * image[0] * image[1], image[2], dtype)
        return self._device.empty((batch, *image), carrier(dtype)), spread


class MaxPooling(_Pooling):
    """The largest pixel of each window, and which one it was; a window with a NaN gives NaN."""

    def __init__(self, device: Device, geometry: PoolingGeometry) -> None:
        super().__init__(device, geometry)
        self._wide = math.prod(geometry.kernel) > 256
        self._kept: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._kept = ()
        y, spread = self._outputs(len(x))
        where = self._device.empty(y.shape, "uint16" if self._wide else "uint8")
        dtype = self._geometry.dtype
        self._device.launch(
            "pooling", "max_forward", dtype, spread, x, y, where, len(x), *self._sizes, int(self._wide)
        )
        self._kept = (where,)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        (where,), self._kept = self._kept, ()
        dx, spread = self._inputs(len(dy))
        dtype = self._geometry.dtype
        self._device.launch(
            "pooling", "max_backward", dtype, spread, dy, where, dx, len(dy), *self._sizes, int(self._wide)
        )
        return dx


class AveragePooling(_Pooling):
    """The mean of each window, divided by its size clipped to the padded image, as Caffe does."""

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        y, spread = self._outputs(len(x))
        self._device.launch("pooling", "average_forward", self._geometry.dtype, spread, x, y, len(x), *self._sizes)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        dx, spread = self._inputs(len(dy))
        self._device.launch(
            "pooling", "average_backward", self._geometry.dtype, spread, dy, dx, len(dy), *self._sizes
        )
        return dx


class GlobalAverage:
    """The mean of each channel over the image."""

    def __init__(self, device: Device, geometry: Blob) -> None:
        self._device = device
        self._dtype = geometry.dtype
        self._shape = geometry.shape
        self._pixels = math.prod(geometry.shape[:-1])
        self._channels = geometry.shape[-1]

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        y = self._device.empty((len(x), self._channels), carrier(self._dtype))
        spread = over_rows(len(x), self._channels, self._dtype)
        self._device.launch(
            "pooling", "global_forward", self._dtype, spread, x, y, len(x), self._pixels, self._channels
        )
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        dx = self._device.empty((len(dy), *self._shape), carrier(self._dtype))
        spread = over_rows(len(dy) * self._pixels, self._channels, self._dtype)
        self._device.launch(
            "pooling", "global_backward", self._dtype, spread, dy, dx, len(dy), self._pixels, self._channels
        )
        return dx
