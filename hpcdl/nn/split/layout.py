"""Layouts: the part of the activations that each rank of a model group holds.

A rank has all positions of the axes that a layout does not name. Axis 0 is the images of the batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hpcdl.nn.geometry import Shape

Range = tuple[int, int]
"""First position, and the one after the last."""
Box = tuple[Range, ...]
"""Positions on each axis, images first."""


@dataclass(frozen=True)
class Layout:
    """Positions of each rank on ``axis`` of images of ``shape``.

    Positions may overlap (halos, copies of the whole) and lie outside the image (padding).
    """

    shape: Shape
    """Shape of a whole image."""
    axis: int
    ranges: tuple[Range, ...] = ()
    """Each rank's positions; empty for axis 0, where they follow from the batch."""
    fill: float = 0.0
    """Value of positions outside the image."""
    of_batch: bool = False
    """True for numbers of a whole batch, such as statistics: one row, not one per image."""

    @property
    def by_images(self) -> bool:
        """True if each rank has its share of the images: data parallelism."""
        return self.axis == 0

    @property
    def replicated(self) -> bool:
        """True if every rank has all positions."""
        return not self.by_images and all(positions == (0, self.shape[self.axis - 1]) for positions in self.ranges)

    def local(self, rank: int) -> Shape:
        """Return the shape of ``rank``'s part of an image."""
        if self.by_images:
            return self.shape
        low, high = self.ranges[rank]
        return (*self.shape[: self.axis - 1], high - low, *self.shape[self.axis :])

    def array(self, rank: int, shape: Shape) -> Shape:
        """Return the shape of ``rank``'s array of one image; activations of a vector ``shape`` are flat."""
        local = self.local(rank)
        return (math.prod(local),) if len(shape) == 1 else local

    def boxes(self, images: Sequence[Range]) -> list[Box]:
        """Return each rank's box; ``images`` are the ranks' shares of the group's batch."""
        inside = [(0, extent) for extent in self.shape]
        if self.by_images:
            return [(share, *inside) for share in images]
        batch = (0, 1) if self.of_batch else (0, images[-1][1])
        return [(batch, *inside[: self.axis - 1], positions, *inside[self.axis :]) for positions in self.ranges]


def by_images(shape: Shape) -> Layout:
    """Return the layout of data parallelism."""
    return Layout(shape, 0)


def whole(shape: Shape, ranks: int) -> Layout:
    """Return the layout in which every rank has all of every image."""
    return Layout(shape, 1, ((0, shape[0]),) * ranks)


def cut(shape: Shape, axis: int, ranks: int, *, layer: str, noun: str) -> Layout:
    """Return consecutive parts whose lengths differ by one at most, longer ones first.

    ValueError, naming ``layer`` and the ``noun`` of the positions, if a rank would have none.
    """
    size = shape[axis - 1]
    if size < ranks:
        raise ValueError(f"{layer}: {size} {noun} cannot be split among {ranks} ranks")
    # as hpcdl.fabric.vectors.partition cuts vectors, so that buffers and layers have equal parts
    quotient, remainder = divmod(size, ranks)
    bounds = [rank * quotient + min(rank, remainder) for rank in range(ranks + 1)]
    return Layout(shape, axis, tuple(pairwise(bounds)))


def intersection(box: Box, other: Box) -> Box:
    """Return the positions that two boxes share; ranges may be empty."""
    return tuple((low := max(a[0], b[0]), max(low, min(a[1], b[1]))) for a, b in zip(box, other, strict=True))


def extents(box: Box) -> Shape:
    """Return the lengths of a box."""
    return tuple(high - low for low, high in box)


def volume(box: Box) -> int:
    """Return the number of elements in a box."""
    return math.prod(extents(box))


def within(box: Box, origin: Box) -> tuple[slice, ...]:
    """Return the index of ``box`` in an array that holds ``origin``."""
    return tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(box, origin, strict=True))
