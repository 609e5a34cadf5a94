"""Locally connected layers split by rows of the image."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from hpcdl.nn.split.part import Part, along
from hpcdl.nn.split.rows import windowed

if TYPE_CHECKING:
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layers.locally_connected import LocallyConnected
    from hpcdl.nn.split.layout import Layout


def by_rows(layer: LocallyConnected, shape: Shape, have: Layout, rank: int, ranks: int) -> list[Part]:  # noqa: ARG001
    """Split the image by rows; a rank has the filters of its rows of outputs (Dean et al. 2012, section 3).

    A rank receives its halo: the rows of others that its windows read. In backward it returns their gradients.
    Rank r has the outputs [a_r, b_r) and reads rows [a_r stride - padding, (b_r - 1) stride - padding + k). With h
    rows of halo in all, B images of width W and C channels, in elements, all p ranks:

    Forward: h*B*W*C
    Backward: h*B*W*C
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
    return [Part(own, takes, gives, rank, along(layer, shape, slice(*gives.ranges[rank])))]
