"""Pooling; backward gathers gradients, so that each sum has a fixed order."""

import math

from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import Blob, Image, WindowGeometry
from hpcdl.nn.kernels.cupy.device import Device, Grid, Op


class _Pooling(Op):
    """Sizes of a pooling in the order of the kernels' arguments; allocation of its arrays."""

    source = "pooling"

    def __init__(self, device: Device, geometry: WindowGeometry) -> None:
        super().__init__(device, geometry)
        g = geometry
        self._sizes = (*g.image, *g.output[:2], *g.kernel, *g.stride, *g.padding)

    def _images(self, batch: int, image: Image) -> tuple[Array, Grid]:
        grid = self._over_rows(batch * image[0] * image[1], image[2])
        return self._empty((batch, *image)), grid


class MaxPooling(_Pooling):
    """Maximum of each window; stores the index of the first maximum. A window with NaN gives NaN."""

    def __init__(self, device: Device, geometry: WindowGeometry) -> None:
        super().__init__(device, geometry)
        self._wide = math.prod(geometry.kernel) > 256

    def forward(self, x: Array) -> Array:
        self._saved = ()
        y, grid = self._images(len(x), self._geometry.output)
        where = self._device.empty(y.shape, "uint16" if self._wide else "uint8")
        self._launch("max_forward", grid, x, y, where, len(x), *self._sizes, int(self._wide))
        self._saved = (where,)
        return y

    def backward(self, dy: Array) -> Array:
        (where,), self._saved = self._saved, ()
        dx, grid = self._images(len(dy), self._geometry.image)
        self._launch("max_backward", grid, dy, where, dx, len(dy), *self._sizes, int(self._wide))
        return dx


class AveragePooling(_Pooling):
    """Mean of each window; the divisor is its size clipped to the padded image, as in Caffe."""

    def forward(self, x: Array) -> Array:
        y, grid = self._images(len(x), self._geometry.output)
        self._launch("average_forward", grid, x, y, len(x), *self._sizes)
        return y

    def backward(self, dy: Array) -> Array:
        dx, grid = self._images(len(dy), self._geometry.image)
        self._launch("average_backward", grid, dy, dx, len(dy), *self._sizes)
        return dx


class GlobalAverage(Op):
    """Mean of each channel over the image."""

    source = "pooling"

    def __init__(self, device: Device, geometry: Blob) -> None:
        super().__init__(device, geometry)
        self._shape = geometry.shape
        self._pixels, self._channels = math.prod(geometry.shape[:-1]), geometry.shape[-1]

    def forward(self, x: Array) -> Array:
        y, grid = self._empty((len(x), self._channels)), self._over_rows(len(x), self._channels)
        self._launch("global_forward", grid, x, y, len(x), self._pixels, self._channels)
        return y

    def backward(self, dy: Array) -> Array:
        dx = self._empty((len(dy), *self._shape))
        grid = self._over_rows(len(dy) * self._pixels, self._channels)
        self._launch("global_backward", grid, dy, dx, len(dy), self._pixels, self._channels)
        return dx
