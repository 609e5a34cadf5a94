"""One rank's part of a layer, an ordinary layer with fewer outputs, and the layouts of its activations."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Bound, Noise
from hpcdl.nn.geometry import DropoutGeometry, Shape
from hpcdl.nn.layer import Draws, Layer, Site, Variable

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


@dataclass(eq=False)
class CutMasks:
    """Masks of a rank that has a part of each image: drawn for whole images, then cut.

    All ranks of a group draw the same numbers, those of the undivided network.
    """

    noise: Noise
    whole: Shape
    index: tuple[slice, ...]
    _mask: Array | None = None

    def reseed(self, key: Sequence[int]) -> None:
        self.noise.reseed(key)

    def continued(self) -> "CutMasks":
        return CutMasks(self.noise.continued(), self.whole, self.index)

    def forward(self, x: Array) -> Array:
        ones = np.ones_like(x, shape=(len(x), *self.whole))
        self._mask = self.noise.forward(ones)[self.index].reshape(x.shape)
        return x * self._mask

    def backward(self, dy: Array) -> Array:
        assert self._mask is not None, "a forward comes first"
        mask, self._mask = self._mask, None
        return dy * mask


class OwnMasks:
    """Masks of a rank that has its own images: it draws other numbers than the others of its group."""

    def __init__(self, noise: Noise, rank: int) -> None:
        self._noise = noise
        self._rank = rank
        self.forward = noise.forward
        self.backward = noise.backward

    def reseed(self, key: Sequence[int]) -> None:
        self._noise.reseed((*key, self._rank))

    def continued(self) -> "OwnMasks":
        return OwnMasks(self._noise.continued(), self._rank)


def masks(
    layout: Layout, rank: int, build: Callable[[DropoutGeometry], Noise], geometry: DropoutGeometry
) -> Noise:
    """Return the masks of ``rank`` for activations in a layout; ``build`` makes those of a whole network."""
    if layout.by_images:
        return OwnMasks(build(geometry), rank)
    index = (*[slice(None)] * layout.axis, slice(*layout.ranges[rank]))
    return CutMasks(build(replace(geometry, shape=layout.shape)), layout.shape, index)


@dataclass(frozen=True)
class Cut:
    """A rank's part of a layer's variable: positions ``own`` on ``axis`` of the whole, reshaped to ``view``."""

    whole: Variable
    view: Shape
    axis: int
    own: slice

    def initial(self, values: Array, draws: Draws) -> None:
        cut = (self.view, self.axis, self.own)
        self.whole.initial(values, replace(draws, shape=self.whole.shape, cut=cut))


@dataclass(frozen=True)
class Part:
    """One rank's part of a layer. It takes and gives activations in a layout.

    A replicated layout means copies of the whole where a layer takes it, and summands of the whole where it gives
    it. Initial values do not depend on the ranks; each rank draws its own.
    """

    layer: Layer
    """Layer with the sizes of this rank."""
    takes: Layout
    gives: Layout
    rank: int
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    """Cuts of all variables by name; empty if they are whole on every rank."""
    of: str = ""
    """Name of the whole layer, if it is not that of ``layer``."""
    stashes: bool = False
    """True if it leaves arrays for another part of the same layer, or takes them (:class:`Site`)."""

    @property
    def name(self) -> str:
        return self.layer.name

    def output(self, shape: Shape) -> Shape:
        return self.layer.output(shape)

    def declare(self, shape: Shape) -> list[Variable]:
        declared = self.layer.declare(shape)
        if not self.cuts:
            return declared
        return [
            replace(
                variable,
                initial=self.cuts[variable.name].initial,
                drawn_as=f"{self.of or self.name}.{variable.name}",
            )
            for variable in declared
        ]

    def bind(self, shape: Shape, site: Site) -> Bound:
        masked = replace(site.backend, dropout=partial(masks, self.takes, self.rank, site.backend.dropout))
        return self.layer.bind(shape, replace(site, backend=masked))


def along(
    layer: Layer, shape: Shape, positions: slice, view: Shape | None = None, axis: int = 0
) -> dict[str, Cut]:
    """Return the cuts of all variables of a layer, for inputs of ``shape``, to positions on ``axis`` of ``view``.

    ``view`` is by default the shape of the variable.
    """
    return {
        variable.name: Cut(variable, view or variable.shape, axis, positions) for variable in layer.declare(shape)
    }


@dataclass(frozen=True)
class Joint:
    """Layer of a split only, such as the sum of the ranks' products; ``build`` binds it to a site."""

    name: str
    outputs: Shape
    """Shape of the rank's outputs."""
    build: Callable[[Site], Bound]
    variables: tuple[Variable, ...] = ()

    def output(self, shape: Shape) -> Shape:  # noqa: ARG002
        return self.outputs

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        return [*self.variables]

    def bind(self, shape: Shape, site: Site) -> Bound:  # noqa: ARG002
        return self.build(site)
