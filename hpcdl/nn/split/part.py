"""One rank's part of a layer: an ordinary layer with fewer outputs, between two layouts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Bound, Noise
from hpcdl.nn.geometry import DropoutGeometry, Shape
from hpcdl.nn.initial import Draws
from hpcdl.nn.layer import Layer, Site, Variable
from hpcdl.nn.split.layout import Layout


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
