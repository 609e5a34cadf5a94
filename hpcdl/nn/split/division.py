"""Division of a network among the ranks of a model group: every layer's part, and the layouts between them."""

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from hpcdl.fabric.comm import Array
from hpcdl.nn.composite import Auxiliary, Concat, Residual, ShortcutSum
from hpcdl.nn.geometry import Blob, ConcatenationGeometry, Shape
from hpcdl.nn.layer import AuxiliaryLoss, Layer, Site, Variable
from hpcdl.nn.layers import BatchNorm, Convolution, Flatten, Linear, LocallyConnected, WindowPooling
from hpcdl.nn.split import layers as splits
from hpcdl.nn.split.part import Joint, Layout, Part, along, by_images


class Fork:
    """Keep the input, of the shape ``local``; sum the input gradients of all branches."""

    def __init__(self, of: str, local: Shape, site: Site) -> None:
        self._stash = site.stash(of)
        self._add = site.backend.addition(Blob(local, site.dtype))

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        self._stash.append(x)
        return x

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        terms = [dy, *self._stash]
        self._stash.clear()
        return self._add.forward(terms) if needs_dx else None


class Switch:
    """Keep a branch's outputs and return the input; backward keeps an input gradient at the front of the stash."""

    def __init__(self, of: str, site: Site) -> None:
        self._stash = site.stash(of)

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        self._stash.append(x)
        return self._stash[0]

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:  # noqa: ARG002
        self._stash.insert(0, dy)
        return self._stash.pop()


class Sum:
    """Add the last branch to the first one; their outputs have the shape ``local``."""

    def __init__(self, of: str, local: Shape, relu: bool, site: Site) -> None:
        self._stash = site.stash(of)
        self._sum = ShortcutSum(Blob(local, site.dtype), site, relu)

    def forward(self, x: Array, train: bool) -> Array:
        _, first = self._stash
        self._stash.clear()
        return self._sum.forward(first, train, x)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:  # noqa: ARG002
        dz, _ = self._sum.backward_joined(dy)
        self._stash.append(dz)
        return dz


class Concatenated:
    """Concatenate the outputs of all branches, of the shapes ``locals_``, on channels."""

    def __init__(self, of: str, locals_: Sequence[Shape], site: Site) -> None:
        self._stash = site.stash(of)
        self._join = site.backend.concatenation(ConcatenationGeometry(tuple(locals_), site.dtype))

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        _, *others = self._stash
        self._stash.clear()
        return self._join.forward([*others, x])

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:  # noqa: ARG002
        *others, last = self._join.backward(dy)
        self._stash += others
        return last


class Classifier:
    """Pass the logits to the loss of the auxiliary classifier ``of``; return the classifier's input unchanged."""

    def __init__(self, of: str, classes: int, weight: float, site: Site) -> None:
        self._stash = site.stash(of)
        self._loss = AuxiliaryLoss(of, classes, weight, site.backend, site.dtype)
        site.heads.append(self._loss)

    def forward(self, x: Array, train: bool) -> Array:
        if train:
            self._loss.put(x)
        return self._stash.pop()

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:  # noqa: ARG002
        """See :class:`hpcdl.nn.backend.Bound`; ValueError without labels since forward."""
        self._stash.append(dy)
        return self._loss.take()


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
    divider = _Divider(split, linear, rank, ranks)
    divided: list[tuple[Part, Shape, str]] = []
    have = by_images(shape)
    for layer in layers:
        placed, have = divider.chain([layer], shape, have)
        divided += [(part, local, layer.name) for part, local in placed]
        shape = layer.output(shape)
    parts, shapes, names = zip(*divided, strict=True)
    return Division(parts, shapes, names, shape)


Placed = tuple[Part, Shape]
"""A part, and the shape of its input on this rank."""
Branched = Auxiliary | Concat | Residual


@dataclass(frozen=True)
class _Divider:
    """Split of the layers, for a rank of the model group."""

    split: str
    linear: str
    rank: int
    ranks: int

    def chain(self, layers: Sequence[Layer], shape: Shape, have: Layout) -> tuple[list[Placed], Layout]:
        """Return the parts of consecutive ``layers`` with their input shapes, and the layout of the outputs."""
        placed: list[Placed] = []
        for layer in layers:
            if isinstance(layer, Branched) and self.split != "hybrid":
                parts, have = self.branches(layer, shape, have)
                placed += parts
            else:
                for part in self.parts(layer, shape, have):
                    placed.append((part, part.takes.array(self.rank, shape)))
                    have = part.gives
            shape = layer.output(shape)
        return placed, have

    def branches(self, layer: Branched, shape: Shape, have: Layout) -> tuple[list[Placed], Layout]:
        """Divide each branch alone; all branches start in the layout of the input and end in one common layout.

        The parts are a sequence, so that activations move between them as between layers::

            fork   branch 1   switch   branch 2   switch   branch 3   join

        The fork keeps the input on its rank. A switch keeps the outputs of the branch before it and returns the
        input. So an input that n convolutions read is gathered n times, as it counts n times in |D| (Iandola et
        al. 2016). The branches of a sum end in the layout of the first one. Those of a concatenation stay cut by
        rows; otherwise they end by images, because parts of each branch's channels are not consecutive channels.

        ValueError, naming the layer: a branch that ends in a flattened image.
        """
        name, rank, local = layer.name, self.rank, have.array(self.rank, shape)
        outputs = [chain.output(shape) for chain in layer.chains]
        divided = [self.chain([_inside(name, one) for one in chain.layers], shape, have) for chain in layer.chains]
        takes, gives = _common(layer, shape, have, [end for _, end in divided], outputs)
        arrays = [taken.array(rank, output) for taken, output in zip(takes, outputs, strict=True)]
        fork = Joint(f"{name}.fork", local, partial(Fork, name, local))
        placed: list[Placed] = [(Part(fork, have, have, rank, stashes=True), local)]
        for number, (parts, _) in enumerate(divided, start=1):
            last = number == len(divided)
            switch = Joint(f"{name}.switch{number}", local, partial(Switch, name))
            joint = _join(layer, arrays, local) if last else switch
            end = Part(joint, takes[number - 1], gives if last else have, rank, stashes=True)
            placed += [*parts, (end, arrays[number - 1])]
        return placed, gives

    def parts(self, layer: Layer, shape: Shape, have: Layout) -> list[Part]:
        """Return the parts of a layer without branches for inputs of ``shape`` in the layout ``have``."""
        rank, ranks = self.rank, self.ranks
        if isinstance(layer, Linear):
            return LINEAR[self.linear](layer, shape, have, rank, ranks)
        if (divided := SPLITS[self.split].get(type(layer))) is not None:
            return divided(layer, shape, have, rank, ranks)
        by_features = not have.by_images and (len(shape) == 1 or have.axis == len(have.shape))
        if isinstance(layer, BatchNorm) and self.split != "hybrid" and not by_features:
            return splits.batch_norm_by_positions(layer, shape, have, rank, ranks)
        if not have.by_images:
            if getattr(layer, "alone", None) in {"elements", "channels" if by_features else "rows"}:
                return [_following(layer, shape, have, rank)]
            if isinstance(layer, WindowPooling) and layer.output(shape)[0] >= ranks:
                return splits.pooling_by_rows(layer, shape, have, rank, ranks)
        return [Part(layer, by_images(have.shape), by_images(layer.output(shape)), rank)]


def _inside(outer: str, layer: Layer) -> Layer:
    """Return the layer with its full name, by which its initial values are drawn."""
    renamed = copy(layer)
    setattr(renamed, "name", f"{outer}.{layer.name}")  # noqa: B010 - the protocol lets a user's layer keep it read-only
    return renamed


def _common(
    layer: Branched, shape: Shape, have: Layout, ends: Sequence[Layout], outputs: Sequence[Shape]
) -> tuple[list[Layout], Layout]:
    """Return the layouts in which the join takes the branches, and that of its own outputs."""
    if isinstance(layer, Auxiliary):
        return [by_images(outputs[0])], have
    if any(end.shape != output for end, output in zip(ends, outputs, strict=True)):
        raise ValueError(f"{layer.name}: a branch that ends in a flattened image cannot be split")
    if isinstance(layer, Residual):
        return [ends[0], ends[0]], ends[0]
    whole, first = layer.output(shape), ends[0]
    by_rows = 0 < first.axis < len(whole)
    if by_rows and all((end.axis, end.ranges) == (first.axis, first.ranges) for end in ends):
        return [*ends], Layout(whole, first.axis, first.ranges)
    return [*map(by_images, outputs)], by_images(whole)


def _join(layer: Branched, arrays: Sequence[Shape], local: Shape) -> Joint:
    """Return the join of branches with outputs of the shapes ``arrays`` on this rank."""
    name, of = f"{layer.name}.join", layer.name
    if isinstance(layer, Residual):
        return Joint(name, arrays[0], partial(Sum, of, arrays[0], layer.relu))
    if isinstance(layer, Concat):
        outputs = (*arrays[0][:-1], sum(shape[-1] for shape in arrays))
        return Joint(name, outputs, partial(Concatenated, of, arrays))
    (classes,) = arrays[0]
    return Joint(name, local, partial(Classifier, of, classes, layer.weight))


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
