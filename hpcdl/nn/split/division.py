"""Division of a network among the ranks of a model group: every layer's part, and the layouts between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hpcdl.nn.layers.auxiliary import Auxiliary
from hpcdl.nn.layers.batch_norm import BatchNorm
from hpcdl.nn.layers.concat import Concat
from hpcdl.nn.layers.convolution import Convolution
from hpcdl.nn.layers.dropout import Dropout
from hpcdl.nn.layers.flatten import Flatten
from hpcdl.nn.layers.linear import Linear
from hpcdl.nn.layers.locally_connected import LocallyConnected
from hpcdl.nn.layers.lrn import LRN
from hpcdl.nn.layers.pooling import AveragePooling, GlobalAverage, MaxPooling
from hpcdl.nn.layers.relu import ReLU
from hpcdl.nn.layers.residual import Residual
from hpcdl.nn.layers.sigmoid import Sigmoid
from hpcdl.nn.split import convolution, linear, locally_connected, pooling
from hpcdl.nn.split.layout import Layout, by_images
from hpcdl.nn.split.part import Part, along

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer

Splitter = Callable[[Any, "Shape", Layout, int, int], list[Part]]
"""Function (layer, shape of its inputs, their layout, rank, ranks) that returns the parts of the layer."""

SPLITS: Final[dict[str, dict[type, Splitter]]] = {
    "model": {Convolution: convolution.by_filters, LocallyConnected: locally_connected.by_rows},
    "space": {Convolution: convolution.by_rows, LocallyConnected: locally_connected.by_rows},
    "hybrid": {},
}
"""Ways to split, and the axis along which each splits layers of images; the others are data-parallel."""

LINEAR: Final[dict[str, Splitter]] = {"outputs": linear.by_outputs, "inputs": linear.by_inputs}
"""Ways to split fully connected layers."""

_EACH_ELEMENT: Final = (ReLU, Sigmoid, Dropout, Flatten)
_EACH_CHANNEL: Final = (MaxPooling, AveragePooling, GlobalAverage, BatchNorm)
_EACH_ROW: Final = (LRN,)
_BRANCHED: Final = (Auxiliary, Concat, Residual)


@dataclass(frozen=True)
class Division:
    """One rank's parts of a network's layers, in order."""

    parts: tuple[Part, ...]
    shapes: tuple[Shape, ...]
    """Shape of each part's input on this rank."""
    output: Shape
    """Shape of a whole output."""

    @property
    def whole(self) -> tuple[str, ...]:
        """Names of the layers with parameters that are whole on every rank."""
        parts = zip(self.parts, self.shapes, strict=True)
        return tuple(part.name for part, shape in parts if not part.cuts and part.declare(shape))

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
        """Number of trained parameters on this rank."""
        declared = [part.declare(shape) for part, shape in zip(self.parts, self.shapes, strict=True)]
        return sum(math.prod(one.shape) for variables in declared for one in variables if one.trained)

    @property
    def first_split(self) -> int:
        """Number of the first part that takes images of other ranks; the number of parts if none does."""
        taken = [part.takes.by_images for part in self.parts]
        return taken.index(False) if False in taken else len(taken)


def divide(layers: Sequence[Layer], shape: Shape, *, split: str, linear: str, rank: int, ranks: int) -> Division:
    """Return ``rank``'s division of ``layers`` for images of ``shape``.

    ``split`` is one of :data:`SPLITS`, ``linear`` one of :data:`LINEAR`. Layers without parameters follow the
    layout of their input where that is possible. Otherwise they are data-parallel, as are all layers that the
    split does not divide.

    ValueError, naming the layer, for one that cannot be split so.
    """
    parts: list[Part] = []
    shapes: list[Shape] = []
    have = by_images(shape)
    for layer in layers:
        for part in _parts(layer, shape, have, split, linear, rank, ranks):
            local = part.takes.local(rank)
            parts.append(part)
            shapes.append((math.prod(local),) if len(shape) == 1 else local)
            have = part.gives
        shape = layer.output(shape)
    return Division(tuple(parts), tuple(shapes), shape)


def _parts(layer: Layer, shape: Shape, have: Layout, split: str, linear: str, rank: int, ranks: int) -> list[Part]:
    """Return the parts of one layer with inputs of ``shape`` in the layout ``have``."""
    if isinstance(layer, Linear):
        return LINEAR[linear](layer, shape, have, rank, ranks)
    if (divided := SPLITS[split].get(type(layer))) is not None:
        return divided(layer, shape, have, rank, ranks)
    if isinstance(layer, _BRANCHED) and split != "hybrid":
        raise ValueError(f"{layer.name}: a layer with branches cannot be split; split = 'hybrid' keeps it whole")
    if have.by_images:
        return [_data_parallel(layer, shape, have, rank)]
    by_features = len(shape) == 1 or have.axis == len(have.shape)
    if isinstance(layer, BatchNorm) and not by_features:
        raise ValueError(f"{layer.name}: split = {split!r} cuts the images whose statistics it needs")
    if isinstance(layer, (*_EACH_ELEMENT, *(_EACH_CHANNEL if by_features else _EACH_ROW))):
        return [_following(layer, shape, have, rank)]
    if isinstance(layer, (MaxPooling, AveragePooling)) and layer.output(shape)[0] >= ranks:
        return pooling.by_rows(layer, shape, rank, ranks)
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
