"""Pooling over windows and over whole images; subsampling."""

from __future__ import annotations

from typing import ClassVar

from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import (
    Blob,
    ConcatenationGeometry,
    Pair,
    PoolingGeometry,
    Rounding,
    Shape,
    as_image,
    pair,
    storage_dtype,
    windows,
)
from hpcdl.nn.layer import Alone, BoundElementary, Site, Variable
from hpcdl.nn.ops import Bound, Concatenation, Elementary


class WindowPooling:
    """(N, H, W, C) to (N, P, Q, C): a number for each window and channel; the stride defaults to the kernel.

    ``mode`` is the rounding of an incomplete last window (see :func:`hpcdl.nn.geometry.windows`); Caffe uses
    ``ceil``.
    """

    alone: ClassVar[Alone] = "channels"
    operation: ClassVar[str]
    """Name of the backend's operation; see :class:`hpcdl.nn.backend.Backend`."""

    def __init__(
        self,
        name: str,
        kernel: int | Pair,
        *,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        mode: Rounding = "ceil",
    ) -> None:
        self.name = name
        self.kernel = pair(kernel)
        self.stride = self.kernel if stride is None else pair(stride)
        self.padding = pair(padding)
        self.mode: Rounding = mode

    def output(self, shape: Shape) -> Shape:
        """Return (P, Q, C); ValueError where the windows do not fit."""
        return self._geometry(shape, "float32").output

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:
        return BoundElementary(getattr(site.backend, self.operation)(self._geometry(shape, site.dtype)))

    def _geometry(self, shape: Shape, dtype: str) -> PoolingGeometry:
        image = as_image(shape, layer=self.name)
        if self.padding[0] >= self.kernel[0] or self.padding[1] >= self.kernel[1]:
            raise ValueError(
                f"{self.name}: padding {self.padding} leaves windows of {self.kernel} without a pixel"
            )
        placed = windows(image[:2], self.kernel, self.stride, self.padding, self.mode, layer=self.name)
        return PoolingGeometry(image, (*placed, image[2]), self.kernel, self.stride, self.padding, dtype)


class MaxPooling(WindowPooling):
    """Maximum of each window. Among equal pixels the first receives the gradient; padding is never the maximum."""

    operation = "max_pooling"


class AveragePooling(WindowPooling):
    """Mean of each window.

    The divisor is the window's size clipped to the padded image, as in Caffe's pooling_layer: padding counts as
    zeros, positions beyond the padding do not count.
    """

    operation = "average_pooling"


class GlobalAverage:
    """(N, H, W, C) to (N, C): mean of each channel (Lin et al. 2013, section 3.2)."""

    alone: ClassVar[Alone] = "channels"

    def __init__(self, name: str) -> None:
        self.name = name

    def output(self, shape: Shape) -> Shape:
        """Return (C,); ValueError where the input is not an image."""
        return (as_image(shape, layer=self.name)[2],)

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:
        return BoundElementary(site.backend.global_average(Blob(shape, site.dtype)))


class Subsampling:
    """(N, H, W, C) to (N, P, Q, K): every ``stride``-th pixel, with zero channels appended up to ``channels``.

    The identity shortcut with increasing dimensions of He et al. 2015, section 3.3, option A.
    """

    def __init__(self, name: str, channels: int, *, stride: int | Pair = 2) -> None:
        self.name = name
        self.channels = channels
        self.stride = pair(stride)

    def output(self, shape: Shape) -> Shape:
        """Return (P, Q, K); ValueError where ``channels`` is not larger than the number of input channels."""
        image = as_image(shape, layer=self.name)
        if self.channels <= image[2]:
            raise ValueError(f"{self.name}: needs more than {image[2]} channels, got {self.channels}")
        return (*windows(image[:2], (1, 1), self.stride, (0, 0), "floor", layer=self.name), self.channels)

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`; average pooling with a 1x1 kernel selects the pixels."""
        image, output = as_image(shape, layer=self.name), self.output(shape)
        pixels = (*output[:2], image[2])
        zeros = (*output[:2], self.channels - image[2])
        pooling = PoolingGeometry(image, (output[0], output[1], image[2]), (1, 1), self.stride, (0, 0), site.dtype)
        joining = ConcatenationGeometry((pixels, zeros), site.dtype)
        return BoundSubsampling(
            site.backend.average_pooling(pooling), site.backend.concatenation(joining), zeros, site
        )


class BoundSubsampling:
    """Bound subsampling."""

    def __init__(self, pool: Elementary, join: Concatenation, zeros: Shape, site: Site) -> None:
        self._pool = pool
        self._join = join
        self._shape = zeros
        self._site = site
        self._zeros: Array | None = None

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        return self._join.forward([self._pool.forward(x), self._zero_channels(len(x))])

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        return self._pool.backward(self._join.backward(dy)[0]) if needs_dx else None

    def _zero_channels(self, batch: int) -> Array:
        if self._zeros is None or len(self._zeros) < batch:
            rows, columns, channels = self._shape
            size = batch * rows * columns * channels
            zeros = self._site.backend.zeros(size, storage_dtype(self._site.dtype))
            self._zeros = zeros.reshape(batch, rows, columns, channels)
        return self._zeros[:batch]
