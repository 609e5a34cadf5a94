"""Division of a network among the ranks of a model group: every layer's part, and the layouts between them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer, Variable
from hpcdl.nn.layers.affine import Convolution, Linear, LocallyConnected
from hpcdl.nn.layers.elementwise import Flatten
from hpcdl.nn.layers.normalization import BatchNorm
from hpcdl.nn.layers.pooling import WindowPooling
from hpcdl.nn.split import branches
from hpcdl.nn.split import layers as splits
from hpcdl.nn.split.layout import Layout, by_images
from hpcdl.nn.split.part import Part, along

Splitter = Callable[[Any, "Shape", Layout, int, int], list[Part]]
"""Function (layer, shape of its inputs, their layout, rank, ranks) that returns the parts of the layer."""
SPLITS: Final[dict[str, dict[type, Splitter]]] = {
    "model": {Convolution: splits.convolution_by_filters, LocallyConnected: splits.locally_connected_by_rows},
    "space": {Convolution: splits.convolution_by_rows, LocallyConnected: splits.locally_connected_by_rows},
    "hybrid": {},
}
"""Ways to split, and the axis along which each splits layers of images; the others are data-parallel."""
LINEAR: Final[dict[str, Splitter]] = {"outputs": splits.linear_by_outputs, "inputs": splits.linear_by_inputs}
"""Ways to split fully connected layers."""


@dataclass(frozen=True)
class _Way:
    """Split of the layers, and a rank of the model group."""

    split: str
    linear: str
    rank: int
    ranks: int


@dataclass(frozen=True)
class Division:
    """One rank's parts of a network's layers, in order."""

    parts: tuple[Part, ...]
    shapes: tuple[Shape, ...]
    """Shape of each part's input on this rank."""
    layers: tuple[str, ...]
    """Name of the layer of the whole network that each part belongs to."""
    output: Shape
    """Shape of a whole output."""

    @property
    def whole(self) -> tuple[str, ...]:
        """Names of the layers with parameters that are whole on every rank."""
        return tuple(part.name for part, variables in self._declared() if not part.cuts and variables)

    @property
    def boundaries(self) -> tuple[tuple[Layout, Layout], ...]:
        """Layouts (given, taken) before each part and, at the end, before the loss, which is data-parallel.

        The first one is the images, which ranks read as the first part takes them.
        """
        given = [self.parts[0].takes, *(part.gives for part in self.parts)]
        taken = [*(part.takes for part in self.parts), by_images(self.output)]
        return tuple(zip(given, taken, strict=True))

    @property
    def parameters(self) -> int:
        return sum(
            math.prod(variable.shape)
            for _, variables in self._declared()
            for variable in variables
            if variable.trained
        )

    @property
    def first_split(self) -> int:
        """Number of the first part that takes images of other ranks; the number of parts if none does."""
        taken = [part.takes.by_images for part in self.parts]
        return taken.index(False) if False in taken else len(taken)

    @property
    def passes_end(self) -> int:
        """Number of the first part from the first split one on that has batch normalisation; else of the parts."""
        stateful = (any(not variable.trained for variable in variables) for _, variables in self._declared())
        numbers = (number for number, has in enumerate(stateful) if has and number >= self.first_split)
        return next(numbers, len(self.parts))

    def _declared(self) -> list[tuple[Part, list[Variable]]]:
        return [(part, part.declare(shape)) for part, shape in zip(self.parts, self.shapes, strict=True)]


def divide(layers: Sequence[Layer], shape: Shape, *, split: str, linear: str, rank: int, ranks: int) -> Division:
    """Return ``rank``'s division of ``layers`` for images of ``shape``.

    ``split`` is one of :data:`SPLITS`, ``linear`` one of :data:`LINEAR`. Layers without parameters follow the
    layout of their input where that is possible; all others that the split does not divide are data-parallel. A
    hybrid keeps layers with branches whole, and batch normalisation within each rank's images; other splits
    normalise by the batch of the whole group. ValueError, naming the layer, for one that cannot be split so.
    """
    way = _Way(split, linear, rank, ranks)
    divided: list[tuple[Part, Shape, str]] = []
    have = by_images(shape)
    for layer in layers:
        placed, have = _chain([layer], shape, have, way)
        divided += [(part, local, layer.name) for part, local in placed]
        shape = layer.output(shape)
    parts, shapes, names = zip(*divided, strict=True)
    return Division(parts, shapes, names, shape)


def _chain(layers: Sequence[Layer], shape: Shape, have: Layout, way: _Way) -> tuple[list[branches.Placed], Layout]:
    """Return the parts of consecutive ``layers`` with their input shapes, and the layout of the outputs."""
    placed: list[branches.Placed] = []
    for layer in layers:
        if isinstance(layer, branches.Branched) and way.split != "hybrid":
            inside = partial(_chain, way=way)
            parts, have = branches.divided(layer, shape, have, way.rank, inside)
            placed += parts
        else:
            for part in _parts(layer, shape, have, way):
                placed.append((part, part.takes.array(way.rank, shape)))
                have = part.gives
        shape = layer.output(shape)
    return placed, have


def _parts(layer: Layer, shape: Shape, have: Layout, way: _Way) -> list[Part]:
    """Return the parts of a layer without branches for inputs of ``shape`` in the layout ``have``."""
    rank, ranks = way.rank, way.ranks
    if isinstance(layer, Linear):
        return LINEAR[way.linear](layer, shape, have, rank, ranks)
    if (divided := SPLITS[way.split].get(type(layer))) is not None:
        return divided(layer, shape, have, rank, ranks)
    by_features = not have.by_images and (len(shape) == 1 or have.axis == len(have.shape))
    if isinstance(layer, BatchNorm) and way.split != "hybrid" and not by_features:
        return splits.batch_norm_by_positions(layer, shape, have, rank, ranks)
    if have.by_images:
        return [_data_parallel(layer, shape, have, rank)]
    if getattr(layer, "alone", None) in {"elements", "channels" if by_features else "rows"}:
        return [_following(layer, shape, have, rank)]
    if isinstance(layer, WindowPooling) and layer.output(shape)[0] >= ranks:
        return splits.pooling_by_rows(layer, shape, have, rank, ranks)
    return [_data_parallel(layer, shape, have, rank)]


def _data_parallel(layer: Layer, shape: Shape, have: Layout, rank: int) -> Part:
    return Part(layer, by_images(have.shape), by_images(layer.output(shape)), rank)


def _following(layer: Layer, shape: Shape, have: Layout, rank: int) -> Part:
    """Return the part of a layer that treats each position on the cut axis alone."""
    output, gives = layer.output(shape), have
    if len(shape) == len(have.shape) and not isinstance(layer, Flatten):
        # pooling of channels changes the other axes, or removes them
        gives = Layout(output, len(output) if have.axis == len(have.shape) else have.axis, have.ranges)
    cuts = {}
    if isinstance(layer, BatchNorm):
        view = have.shape if len(shape) == 1 else shape[-1:]
        cuts = along(layer, shape, slice(*have.ranges[rank]), view, have.axis - 1 if len(shape) == 1 else 0)
    return Part(layer, have, gives, rank, cuts)
