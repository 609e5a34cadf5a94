"""Residual blocks, inception modules and auxiliary classifiers; each of their branches is divided alone."""

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial

from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import Blob, ConcatenationGeometry, Shape
from hpcdl.nn.layer import Layer, Site
from hpcdl.nn.layers.composite import Auxiliary, Concat, Residual, ShortcutSum
from hpcdl.nn.loss import AuxiliaryLoss
from hpcdl.nn.split.layout import Layout, by_images
from hpcdl.nn.split.part import Joint, Part


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
    So an input that n convolutions read is gathered n times, as it counts n times in |D| (Iandola et al. 2016).

    The branches of a sum end in the layout of the first one. Those of a concatenation stay cut by rows; otherwise
    they end by images, because parts of each branch's channels are not consecutive channels of all branches.

    ValueError, naming the layer: a branch that ends in a flattened image.
    """
    name, local = layer.name, have.array(rank, shape)
    outputs = [chain.output(shape) for chain in layer.chains]
    divided = [divide([_inside(name, layer) for layer in chain.layers], shape, have) for chain in layer.chains]
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
