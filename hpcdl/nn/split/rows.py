"""Rows of images that windows read: the halo of a split by space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.split.layout import Layout, cut

if TYPE_CHECKING:
    from hpcdl.nn.geometry import Shape


def windowed(
    image: Shape,
    output: Shape,
    kernel: int,
    stride: int,
    padding: int,
    ranks: int,
    *,
    layer: str,
    fill: float = 0.0,
) -> tuple[Layout, Layout]:
    """Return the layouts of the rows that the ranks' windows read, and of the rows of outputs.

    ::

        rows of the image    0 1 2 3 4 5 6        kernel 3, padding 1: rank 0 has outputs 0 to 3 and reads rows
        rank 0             . = = = = =            -1 to 4, of which row -1 is padding; rank 1 has outputs 4 to 6
        rank 1                     = = = = .      and reads rows 3 to 7

    Rows of the padding have the value ``fill``. ValueError, naming ``layer``: more ranks than rows of outputs.
    """
    gives = cut(output, 1, ranks, layer=layer, noun="rows of outputs")
    reads = tuple(
        (low * stride - padding, min((high - 1) * stride - padding + kernel, image[0] + padding))
        for low, high in gives.ranges
    )
    return Layout(image, 1, reads, fill), gives
