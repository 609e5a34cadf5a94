"""Pooling over windows and over whole images."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hpcdl.nn.geometry import Blob, Pair, PoolingGeometry, Rounding, Shape, as_image, pair, windows
from hpcdl.nn.layer import BoundElementary

if TYPE_CHECKING:
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.layer import Alone, Site, Variable


class PoolingWindow:
    """Kernel, stride, padding and rounding of a pooling layer; the stride defaults to the kernel."""

    def __init__(self, kernel: int | Pair, stride: int | Pair | None, padding: int | Pair, mode: Rounding) -> None:
        self.kernel = pair(kernel)
        self.stride = self.kernel if stride is None else pair(stride)
        self.padding = pair(padding)
        self.mode: Rounding = mode

    def over(self, shape: Shape, dtype: str, *, layer: str) -> PoolingGeometry:
        """Return the geometry on images of ``shape``; ValueError where the windows do not fit."""
        image = as_image(shape, layer=layer)
        if self.padding[0] >= self.kernel[0] or self.padding[1] >= self.kernel[1]:
            raise ValueError(f"{layer}: padding {self.padding} leaves windows of {self.kernel} without a pixel")
        placed = windows(image[:2], self.kernel, self.stride, self.padding, self.mode, layer=layer)
        output = (*placed, image[2])
        return PoolingGeometry(image, output, self.kernel, self.stride, self.padding, dtype)


class WindowPooling:
    """(N, H, W, C) to (N, P, Q, C): a number for each window and channel.

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
        self.window = PoolingWindow(kernel, stride, padding, mode)

    def output(self, shape: Shape) -> Shape:
        """Return (P, Q, C); ValueError where the windows do not fit."""
        return self.window.over(shape, "float32", layer=self.name).output

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        """Nothing."""
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`."""
        geometry = self.window.over(shape, site.dtype, layer=self.name)
        return BoundElementary(getattr(site.backend, self.operation)(geometry))


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
        """Nothing."""
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`."""
        return BoundElementary(site.backend.global_average(Blob(shape, site.dtype)))
