"""Pooling; backward gathers gradients, so that each sum has a fixed order."""

from __future__ import annotations

import math

from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import Blob, PoolingGeometry, storage_dtype
from hpcdl.nn.kernels.cupy.device import Device, Grid, grid_over_rows


class _Pooling:
    """Sizes of a pooling in the order of the kernels' arguments; allocation of its arrays."""

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

    def _outputs(self, batch: int) -> tuple[Array, Grid]:
        return self._empty(batch, self._geometry.output)

    def _inputs(self, batch: int) -> tuple[Array, Grid]:
        return self._empty(batch, self._geometry.image)

    def _empty(self, batch: int, image: tuple[int, int, int]) -> tuple[Array, Grid]:
        dtype = self._geometry.dtype
        grid = grid_over_rows(batch * image[0] * image[1], image[2], dtype)
        return self._device.empty((batch, *image), storage_dtype(dtype)), grid


class MaxPooling(_Pooling):
    """Maximum of each window; stores the index of the first maximum. A window with NaN gives NaN."""

    def __init__(self, device: Device, geometry: PoolingGeometry) -> None:
        super().__init__(device, geometry)
        self._wide = math.prod(geometry.kernel) > 256
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        self._saved = ()
        y, grid = self._outputs(len(x))
        where = self._device.empty(y.shape, "uint16" if self._wide else "uint8")
        dtype = self._geometry.dtype
        self._device.launch(
            "pooling", "max_forward", dtype, grid, x, y, where, len(x), *self._sizes, int(self._wide)
        )
        self._saved = (where,)
        return y

    def backward(self, dy: Array) -> Array:
        (where,), self._saved = self._saved, ()
        dx, grid = self._inputs(len(dy))
        dtype = self._geometry.dtype
        self._device.launch(
            "pooling", "max_backward", dtype, grid, dy, where, dx, len(dy), *self._sizes, int(self._wide)
        )
        return dx


class AveragePooling(_Pooling):
    """Mean of each window; the divisor is its size clipped to the padded image, as in Caffe."""

    def forward(self, x: Array) -> Array:
        y, grid = self._outputs(len(x))
        self._device.launch("pooling", "average_forward", self._geometry.dtype, grid, x, y, len(x), *self._sizes)
        return y

    def backward(self, dy: Array) -> Array:
        dx, grid = self._inputs(len(dy))
        self._device.launch(
            "pooling", "average_backward", self._geometry.dtype, grid, dy, dx, len(dy), *self._sizes
        )
        return dx


class GlobalAverage:
    """Mean of each channel over the image."""

    def __init__(self, device: Device, geometry: Blob) -> None:
        self._device = device
        self._dtype = geometry.dtype
        self._shape = geometry.shape
        self._pixels = math.prod(geometry.shape[:-1])
        self._channels = geometry.shape[-1]

    def forward(self, x: Array) -> Array:
        y = self._device.empty((len(x), self._channels), storage_dtype(self._dtype))
        grid = grid_over_rows(len(x), self._channels, self._dtype)
        self._device.launch(
            "pooling", "global_forward", self._dtype, grid, x, y, len(x), self._pixels, self._channels
        )
        return y

    def backward(self, dy: Array) -> Array:
        dx = self._device.empty((len(dy), *self._shape), storage_dtype(self._dtype))
        grid = grid_over_rows(len(dy) * self._pixels, self._channels, self._dtype)
        self._device.launch(
            "pooling", "global_backward", self._dtype, grid, dy, dx, len(dy), self._pixels, self._channels
        )
        return dx
