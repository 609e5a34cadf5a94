"""Residual blocks, inception modules and auxiliary classifiers; each of their branches is divided alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcdl.nn.geometry import Blob, ConcatenationGeometry
from hpcdl.nn.layers.composite import Auxiliary, Concat, Residual
from hpcdl.nn.loss import AuxiliaryLoss
from hpcdl.nn.split.layout import Layout, by_images
from hpcdl.nn.split.part import Part

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Chain, Layer, Site, Variable
    from hpcdl.nn.ops import Addition, Bound, Concatenation, Elementary


@dataclass(frozen=True)
class Joint:
    """Layer without variables at an end of branches; ``build`` binds it to a site and to the stash of ``of``."""

    name: str
    of: str
    """Name of the layer with the branches."""
    outputs: Shape
    build: Callable[[Site, list[Array]], Bound]

    def output(self, shape: Shape) -> Shape:  # noqa: ARG002
        """Return the shape of the rank's outputs."""
        return self.outputs

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        """Nothing."""
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:  # noqa: ARG002
        return self.build(site, site.stash(self.of))


def fork(of: str, local: Shape) -> Joint:
    """Return the begin of branches whose input has the shape ``local`` on this rank."""

    def build(site: Site, stash: list[Array]) -> Bound:
        return Fork(stash, site.backend.addition(Blob(local, site.dtype)))

    return Joint(f"{of}.fork", of, local, build)


def switch(of: str, number: int, local: Shape) -> Joint:
    """Return the end of the branch ``number``; it returns the input of all branches."""
    return Joint(f"{of}.switch{number}", of, local, lambda _, stash: Switch(stash))


def addition(of: str, local: Shape, *, relu: bool) -> Joint:
    """Return the sum of two branches, with a ReLU if ``relu``."""

    def build(site: Site, stash: list[Array]) -> Bound:
        blob = Blob(local, site.dtype)
        return Sum(stash, site.backend.addition(blob), site.backend.relu(blob) if relu else None)

    return Joint(f"{of}.join", of, local, build)


def concatenation(of: str, locals_: Sequence[Shape]) -> Joint:
    """Return the concatenation on channels of branches with outputs of the shapes ``locals_``."""
    outputs = (*locals_[0][:-1], sum(shape[-1] for shape in locals_))

    def build(site: Site, stash: list[Array]) -> Bound:
        return Concatenated(stash, site.backend.concatenation(ConcatenationGeometry(tuple(locals_), site.dtype)))

    return Joint(f"{of}.join", of, outputs, build)


def classifier(of: str, classes: int, weight: float, local: Shape) -> Joint:
    """Return the end of an auxiliary classifier with logits of ``classes``; it returns the classifier's input."""

    def build(site: Site, stash: list[Array]) -> Bound:
        loss = AuxiliaryLoss(of, classes, weight, site.backend, site.dtype)
        site.heads.append(loss)
        return Classifier(stash, loss)

    return Joint(f"{of}.join", of, local, build)


class Fork:
    """Keep the input; sum the input gradients of all branches."""

    def __init__(self, stash: list[Array], add: Addition) -> None:
        self._stash = stash
        self._add = add

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        self._stash.append(x)
        return x

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        terms = [dy, *self._stash]
        self._stash.clear()
        return self._add.forward(terms) if needs_dx else None


class Switch:
    """Keep a branch's outputs and return the input; backward keeps an input gradient at the front of the stash."""

    def __init__(self, stash: list[Array]) -> None:
        self._stash = stash

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        self._stash.append(x)
        return self._stash[0]

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:  # noqa: ARG002
        self._stash.insert(0, dy)
        return self._stash.pop()


class Sum:
    """Add the last branch to the first one."""

    def __init__(self, stash: list[Array], add: Addition, relu: Elementary | None) -> None:
        self._stash = stash
        self._add = add
        self._relu = relu

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        _, first = self._stash
        self._stash.clear()
        y = self._add.forward([first, x])
        return y if self._relu is None else self._relu.forward(y)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:  # noqa: ARG002
        dz = dy if self._relu is None else self._relu.backward(dy)
        self._stash.append(dz)
        return dz


class Concatenated:
    """Concatenate the outputs of all branches on channels."""

    def __init__(self, stash: list[Array], join: Concatenation) -> None:
        self._stash = stash
        self._join = join

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        _, *others = self._stash
        self._stash.clear()
        return self._join.forward([*others, x])

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:  # noqa: ARG002
        *others, last = self._join.backward(dy)
        self._stash += others
        return last


class Classifier:
    """Pass the logits to the loss of an auxiliary classifier; return the classifier's input unchanged."""

    def __init__(self, stash: list[Array], loss: AuxiliaryLoss) -> None:
        self._stash = stash
        self._loss = loss

    def forward(self, x: Array, train: bool) -> Array:
        if train:
            self._loss.put(x)
        return self._stash.pop()

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:  # noqa: ARG002
        """See :class:`hpcdl.nn.ops.Bound`; ValueError without labels since forward."""
        self._stash.append(dy)
        return self._loss.take()


Placed = tuple[Part, "Shape"]
"""A part, and the shape of its input on this rank."""

Divide = Callable[[Sequence["Layer"], "Shape", Layout], tuple[list[Placed], Layout]]
"""Function (layers, shape of their inputs, its layout) that returns their parts, and the layout of the outputs."""

Branched = Auxiliary | Concat | Residual


def divided(layer: Branched, shape: Shape, have: Layout, rank: int, divide: Divide) -> tuple[list[Placed], Layout]:
    """Divide each branch alone; all branches start in the layout of the input and end in one common layout.

    The parts are a sequence, so that activations move between them as between layers::

        fork   branch 1   switch   branch 2   switch   branch 3   join

    The fork keeps the input on its rank. A switch keeps the outputs of the branch before it and returns the input.
    The join adds the branches, concatenates them, or passes logits to the loss. So an input that n convolutions
    read is gathered n times, as it counts n times in |D| (Iandola et al. 2016).

    The branches of a sum end in the layout of the first one. Those of a concatenation stay cut by rows; otherwise
    they end by images, because parts of each branch's channels are not consecutive channels of all branches.

    ValueError, naming the layer: a branch that ends in a flattened image.
    """
    name, branches, local = layer.name, _branches(layer), have.array(rank, shape)
    outputs = [branch.output(shape) for branch in branches]
    divided = [divide([_inside(name, layer) for layer in branch.layers], shape, have) for branch in branches]
    takes, gives = _common(layer, shape, have, [end for _, end in divided], outputs)
    arrays = [taken.array(rank, output) for taken, output in zip(takes, outputs, strict=True)]
    placed: list[Placed] = [(Part(fork(name, local), have, have, rank, stashes=True), local)]
    for number, (parts, _) in enumerate(divided, start=1):
        last = number == len(divided)
        joint, after = (_join(layer, arrays, local), gives) if last else (switch(name, number, local), have)
        end = Part(joint, takes[number - 1], after, rank, stashes=True)
        placed += [*parts, (end, arrays[number - 1])]
    return placed, gives


def _branches(layer: Branched) -> tuple[Chain, ...]:
    if isinstance(layer, Residual):
        return layer.branch, layer.shortcut
    return layer.branches if isinstance(layer, Concat) else (layer.head,)


def _inside(outer: str, layer: Layer) -> Layer:
    """Return the layer with its full name, by which its initial values are drawn."""
    own: Any = copy(layer)
    own.name = f"{outer}.{layer.name}"
    found: Layer = own
    return found


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
    if isinstance(layer, Residual):
        return addition(layer.name, arrays[0], relu=layer.relu)
    if isinstance(layer, Concat):
        return concatenation(layer.name, arrays)
    (classes,) = arrays[0]
    return classifier(layer.name, classes, layer.weight, local)
