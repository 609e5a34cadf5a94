"""Pooling of images that are split by rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hpcdl.nn.bound_ops import BoundElementary
from hpcdl.nn.geometry import PoolingGeometry
from hpcdl.nn.layers.pooling import AveragePooling, MaxPooling
from hpcdl.nn.split.part import Part
from hpcdl.nn.split.rows import windowed

if TYPE_CHECKING:
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Site, Variable
    from hpcdl.nn.split.layout import Layout


def by_rows(
    layer: MaxPooling | AveragePooling,
    shape: Shape,
    have: Layout,  # noqa: ARG001
    rank: int,
    ranks: int,
) -> list[Part]:
    """Split the image by rows, with the halo of a convolution.

    Rows of the padding are never the maximum; in a mean they count as zeros, as in the whole image. With h rows of
    halo in all, B images of width W and C channels, in elements, all p ranks:

    Forward: h*B*W*C
    Backward: h*B*W*C
    """
    window, output = layer.window, layer.output(shape)
    fill = -math.inf if isinstance(layer, MaxPooling) else 0.0
    takes, gives = windowed(
        shape,
        output,
        *(window.kernel[0], window.stride[0], window.padding[0]),
        ranks,
        layer=layer.name,
        fill=fill,
    )
    return [Part(_Rows(layer, gives.local(rank)), takes, gives, rank)]


class _Rows:
    """Pooling of rows that include the vertical padding, to outputs of a given shape."""

    def __init__(self, layer: MaxPooling | AveragePooling, output: Shape) -> None:
        self.name = layer.name
        self._layer = layer
        self._output = output

    def output(self, shape: Shape) -> Shape:  # noqa: ARG002
        """Return the shape of the rank's outputs."""
        return self._output

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        """Nothing."""
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`."""
        window, (height, width, channels), (rows, columns, _) = self._layer.window, shape, self._output
        geometry = PoolingGeometry(
            (height, width, channels),
            (rows, columns, channels),
            window.kernel,
            window.stride,
            (0, window.padding[1]),
            site.dtype,
        )
        largest = isinstance(self._layer, MaxPooling)
        build = site.backend.max_pooling if largest else site.backend.average_pooling
        return BoundElementary(build(geometry))
