"""Layers with windows split by filters, or by rows of the image."""

from __future__ import annotations

import math
from copy import copy
from typing import Protocol

from hpcdl.nn.geometry import Pair, PoolingGeometry, Shape
from hpcdl.nn.layer import BoundElementary, Site, Variable
from hpcdl.nn.layers.convolution import Convolution, LocallyConnected
from hpcdl.nn.layers.pooling import MaxPooling, WindowPooling
from hpcdl.nn.ops import Bound
from hpcdl.nn.split.layout import Layout, cut, whole
from hpcdl.nn.split.part import Part, along


class Window(Protocol):
    """Size, stride and padding of a layer's windows."""

    kernel: Pair
    stride: Pair
    padding: Pair


def windowed(
    image: Shape, output: Shape, window: Window, ranks: int, *, layer: str, fill: float = 0.0
) -> tuple[Layout, Layout]:
    """Return the layouts of the rows that the ranks' windows read, and of the rows of outputs.

    ::

        rows of the image    0 1 2 3 4 5 6        kernel 3, padding 1: rank 0 has outputs 0 to 3 and reads rows
        rank 0             . = = = = =            -1 to 4, of which row -1 is padding; rank 1 has outputs 4 to 6
        rank 1                     = = = = .      and reads rows 3 to 7

    Rows of the padding have the value ``fill``. ValueError, naming ``layer``: more ranks than rows of outputs.
    """
    kernel, stride, padding = window.kernel[0], window.stride[0], window.padding[0]
    gives = cut(output, 1, ranks, layer=layer, noun="rows of outputs")
    reads = tuple(
        (low * stride - padding, min((high - 1) * stride - padding + kernel, image[0] + padding))
        for low, high in gives.ranges
    )
    return Layout(image, 1, reads, fill), gives


def locally_connected_by_rows(
    layer: LocallyConnected,
    shape: Shape,
    have: Layout,  # noqa: ARG001
    rank: int,
    ranks: int,
) -> list[Part]:
    """Split the image by rows; a rank has the filters of its rows of outputs (Dean et al. 2012, section 3).

    A rank receives its halo: the rows of others that its windows read. In backward it returns their gradients.
    Rank r has the outputs [a_r, b_r) and reads rows [a_r stride - padding, (b_r - 1) stride - padding + k). With h
    rows of halo in all, B images of width W and C channels, in elements, all p ranks:

    Forward: h*B*W*C
    Backward: h*B*W*C
    """
    takes, gives = windowed(shape, layer.output(shape), layer, ranks, layer=layer.name)
    own = copy(layer)
    own.padding = (0, layer.padding[1])
    return [Part(own, takes, gives, rank, along(layer, shape, slice(*gives.ranges[rank])))]


def pooling_by_rows(
    layer: WindowPooling,
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
    fill = -math.inf if isinstance(layer, MaxPooling) else 0.0
    takes, gives = windowed(shape, layer.output(shape), layer, ranks, layer=layer.name, fill=fill)
    return [Part(_Rows(layer, gives.local(rank)), takes, gives, rank)]


class _Rows:
    """Pooling of rows that include the vertical padding, to outputs of a given shape."""

    def __init__(self, layer: WindowPooling, output: Shape) -> None:
        self.name = layer.name
        self._layer = layer
        self._output = output

    def output(self, shape: Shape) -> Shape:  # noqa: ARG002
        """Return the shape of the rank's outputs."""
        return self._output

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:
        layer, (height, width, channels), (rows, columns, _) = self._layer, shape, self._output
        image, output, padding = (height, width, channels), (rows, columns, channels), (0, layer.padding[1])
        geometry = PoolingGeometry(image, output, layer.kernel, layer.stride, padding, site.dtype)
        return BoundElementary(getattr(site.backend, layer.operation)(geometry))


def convolution_by_filters(layer: Convolution, shape: Shape, have: Layout, rank: int, ranks: int) -> list[Part]:  # noqa: ARG001
    """Split the filters: every rank takes all channels (model parallelism; Gholami et al. 2018, eq. 3).

    Inputs that are cut are gathered in forward; in backward the ranks' summands of the input gradient are
    reduce-scattered. B images of H W C inputs, in elements, all p ranks:

    Forward: (p - 1)*B*H*W*C
    Backward: (p - 1)*B*H*W*C

    Gholami's all-reduce in backward is twice that: here each rank needs the gradient of its own part only.

    ValueError for filters in groups.
    """
    if layer.groups > 1:
        raise ValueError(f"{layer.name}: filters in {layer.groups} groups cannot be split; use groups = 1")
    output = layer.output(shape)
    gives = cut(output, 3, ranks, layer=layer.name, noun="filters")
    low, high = gives.ranges[rank]
    own = copy(layer)
    own.filters = high - low
    return [Part(own, whole(shape, ranks), gives, rank, along(layer, shape, slice(low, high)))]


def convolution_by_rows(layer: Convolution, shape: Shape, have: Layout, rank: int, ranks: int) -> list[Part]:  # noqa: ARG001
    """Split the image by rows (domain parallelism; Gholami et al. 2018, section 2.4). Every rank has all weights.

    A rank receives its halo: the rows of others that its windows read. In backward it returns their gradients.
    With h rows of halo in all, B images of H W C inputs, in elements, all p ranks:

    Forward: h*B*W*C
    Backward: h*B*W*C

    For stride 1, an odd kernel (k, k) and padding k//2, h = (p - 1)*2*(k//2), as in the paper.
    """
    takes, gives = windowed(shape, layer.output(shape), layer, ranks, layer=layer.name)
    own = copy(layer)
    own.padding = (0, layer.padding[1])
    return [Part(own, takes, gives, rank)]
