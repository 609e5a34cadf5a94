"""Pooling over windows and over whole images; subsampling."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import ClassVar

from hpcdl.fabric.comm import Array
from hpcdl.nn import geometry
from hpcdl.nn.backend import Bound, Concatenation, Elementary
from hpcdl.nn.geometry import Blob, Image, Pair, Rounding, Shape, Window, WindowGeometry, as_image, pair
from hpcdl.nn.layer import Alone, BoundElementary, Plain, Site


@dataclass(eq=False)
class WindowPooling(Plain):
    """(N, H, W, C) to (N, P, Q, C): a number for each window and channel; the stride defaults to the kernel.

    ``mode`` is the rounding of an incomplete last window (see :func:`hpcdl.nn.geometry.windows`); Caffe uses
    ``ceil``.
    """

    alone: ClassVar[Alone] = "channels"
    operation: ClassVar[str]
    """Name of the backend's operation; see :class:`hpcdl.nn.backend.Backend`."""
    name: str
    kernel: int | Pair
    _: KW_ONLY
    stride: int | Pair | None = None
    padding: int | Pair = 0
    mode: Rounding = "ceil"

    @property
    def window(self) -> Window:
        return Window(
            pair(self.kernel), pair(self.kernel if self.stride is None else self.stride), pair(self.padding)
        )

    def output(self, shape: Shape) -> Shape:
        """Return (P, Q, C); ValueError where the windows do not fit."""
        return self._geometry(shape, "float32").output

    def bind(self, shape: Shape, site: Site) -> Bound:
        return BoundElementary(getattr(site.backend, self.operation)(self._geometry(shape, site.dtype)))

    def _geometry(self, shape: Shape, dtype: str) -> WindowGeometry:
        image, (kernel, _, padding) = as_image(shape, layer=self.name), self.window
        if padding[0] >= kernel[0] or padding[1] >= kernel[1]:
            raise ValueError(f"{self.name}: padding {padding} leaves windows of {kernel} without a pixel")
        placed = geometry.windows(image[:2], *self.window, self.mode, layer=self.name)
        return WindowGeometry(image, (*placed, image[2]), *self.window, dtype)


class MaxPooling(WindowPooling):
    """Maximum of each window. Among equal pixels the first receives the gradient; padding is never the maximum."""

    operation = "max_pooling"


class AveragePooling(WindowPooling):
    """Mean of each window.

    The divisor is the window's size clipped to the padded image, as in Caffe's pooling_layer: padding counts as
    zeros, positions beyond the padding do not count.
    """

    operation = "average_pooling"


class GlobalAverage(Plain):
    """(N, H, W, C) to (N, C): mean of each channel (Lin et al. 2013, section 3.2)."""

    alone: ClassVar[Alone] = "channels"

    def output(self, shape: Shape) -> Shape:
        """Return (C,); ValueError where the input is not an image."""
        return (as_image(shape, layer=self.name)[2],)

    def bind(self, shape: Shape, site: Site) -> Bound:
        return BoundElementary(site.backend.global_average(Blob(shape, site.dtype)))


@dataclass(eq=False)
class Subsampling(Plain):
    """(N, H, W, C) to (N, P, Q, K): every ``stride``-th pixel, with zero channels appended up to ``channels``.

    The identity shortcut with increasing dimensions of He et al. 2015, section 3.3, option A.
    """

    name: str
    channels: int
    _: KW_ONLY
    stride: int | Pair = 2

    @property
    def window(self) -> Window:
        return Window((1, 1), pair(self.stride), (0, 0))

    def output(self, shape: Shape) -> Image:
        """Return (P, Q, K); ValueError where ``channels`` is not larger than the number of input channels."""
        image = as_image(shape, layer=self.name)
        if self.channels <= image[2]:
            raise ValueError(f"{self.name}: needs more than {image[2]} channels, got {self.channels}")
        return (*geometry.windows(image[:2], *self.window, "floor", layer=self.name), self.channels)

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`; average pooling with a 1x1 kernel selects the pixels."""
        image, output = as_image(shape, layer=self.name), self.output(shape)
        pixels, zeros = (*output[:2], image[2]), (*output[:2], self.channels - image[2])
        pool = site.backend.average_pooling(WindowGeometry(image, pixels, *self.window, site.dtype))
        join = site.backend.concatenation(geometry.ConcatenationGeometry((pixels, zeros), site.dtype))
        make, dtype = site.backend.zeros, geometry.storage_dtype(site.dtype)
        return BoundSubsampling(
            pool, join, cache(lambda batch: make(batch * math.prod(zeros), dtype).reshape(batch, *zeros))
        )


@dataclass(eq=False)
class BoundSubsampling:
    """Bound subsampling; ``zeros(batch)`` returns the channels to be appended."""

    pool: Elementary
    join: Concatenation
    zeros: Callable[[int], Array]

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        return self.join.forward([self.pool.forward(x), self.zeros(len(x))])

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        return self.pool.backward(self.join.backward(dy)[0]) if needs_dx else None
