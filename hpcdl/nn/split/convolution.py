"""Convolutions split by filters or by rows of the image."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from hpcdl.nn.split.layout import Layout, cut, whole
from hpcdl.nn.split.part import Part, along
from hpcdl.nn.split.rows import windowed

if TYPE_CHECKING:
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layers.convolution import Convolution


def by_filters(layer: Convolution, shape: Shape, have: Layout, rank: int, ranks: int) -> list[Part]:  # noqa: ARG001
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


def by_rows(layer: Convolution, shape: Shape, have: Layout, rank: int, ranks: int) -> list[Part]:  # noqa: ARG001
    """Split the image by rows (domain parallelism; Gholami et al. 2018, section 2.4). Every rank has all weights.

    A rank receives its halo: the rows of others that its windows read. In backward it returns their gradients.
    With h rows of halo in all, B images of H W C inputs, in elements, all p ranks:

    Forward: h*B*W*C
    Backward: h*B*W*C

    For stride 1, an odd kernel (k, k) and padding k//2, h = (p - 1)*2*(k//2), as in the paper.
    """
    takes, gives = windowed(
        shape,
        layer.output(shape),
        *(layer.kernel[0], layer.stride[0], layer.padding[0]),
        ranks,
        layer=layer.name,
    )
    own = copy(layer)
    own.padding = (0, layer.padding[1])
    return [Part(own, takes, gives, rank)]
