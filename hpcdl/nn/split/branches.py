"""Residual blocks, inception modules and auxiliary classifiers; each of their branches is divided alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from hpcdl.nn.layers.auxiliary import Auxiliary
from hpcdl.nn.layers.concat import Concat
from hpcdl.nn.layers.residual import Residual
from hpcdl.nn.split import joins
from hpcdl.nn.split.layout import Layout, by_images
from hpcdl.nn.split.part import Part

if TYPE_CHECKING:
    from hpcdl.nn.chain import Chain
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer

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
    found = [divide([_inside(name, one) for one in branch.layers], shape, have) for branch in branches]
    takes, gives = _common(layer, shape, have, [end for _, end in found], outputs)
    arrays = [taken.array(rank, output) for taken, output in zip(takes, outputs, strict=True)]
    placed: list[Placed] = [(Part(joins.fork(name, local), have, have, rank, stashes=True), local)]
    for number, (parts, _) in enumerate(found, start=1):
        last = number == len(found)
        joint, after = (_join(layer, arrays, local), gives) if last else (joins.switch(name, number, local), have)
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


def _join(layer: Branched, arrays: Sequence[Shape], local: Shape) -> joins.Joint:
    """Return the join of branches with outputs of the shapes ``arrays`` on this rank."""
    if isinstance(layer, Residual):
        return joins.addition(layer.name, arrays[0], relu=layer.relu)
    if isinstance(layer, Concat):
        return joins.concatenation(layer.name, arrays)
    (classes,) = arrays[0]
    return joins.classifier(layer.name, classes, layer.weight, local)
