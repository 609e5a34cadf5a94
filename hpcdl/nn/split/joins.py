"""Begin and end of the branches of a divided layer; see :mod:`hpcdl.nn.split.branches`.

They share a stash of arrays, which is empty after forward and after backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcdl.nn.geometry import Blob, ConcatenationGeometry
from hpcdl.nn.loss import AuxiliaryLoss

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Site, Variable
    from hpcdl.nn.ops import Addition, Concatenation, Elementary


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
        """See :class:`hpcdl.nn.layer.Layer`."""
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
        """See :class:`hpcdl.nn.bound.Bound`."""
        self._stash.append(x)
        return x

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """See :class:`hpcdl.nn.bound.Bound`."""
        terms = [dy, *self._stash]
        self._stash.clear()
        return self._add.forward(terms) if needs_dx else None


class Switch:
    """Keep a branch's outputs and return the input; backward keeps an input gradient at the front of the stash."""

    def __init__(self, stash: list[Array]) -> None:
        self._stash = stash

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        """See :class:`hpcdl.nn.bound.Bound`."""
        self._stash.append(x)
        return self._stash[0]

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:  # noqa: ARG002
        """See :class:`hpcdl.nn.bound.Bound`."""
        self._stash.insert(0, dy)
        return self._stash.pop()


class Sum:
    """Add the last branch to the first one."""

    def __init__(self, stash: list[Array], add: Addition, relu: Elementary | None) -> None:
        self._stash = stash
        self._add = add
        self._relu = relu

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        """See :class:`hpcdl.nn.bound.Bound`."""
        _, first = self._stash
        self._stash.clear()
        y = self._add.forward([first, x])
        return y if self._relu is None else self._relu.forward(y)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:  # noqa: ARG002
        """See :class:`hpcdl.nn.bound.Bound`."""
        dz = dy if self._relu is None else self._relu.backward(dy)
        self._stash.append(dz)
        return dz


class Concatenated:
    """Concatenate the outputs of all branches on channels."""

    def __init__(self, stash: list[Array], join: Concatenation) -> None:
        self._stash = stash
        self._join = join

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        """See :class:`hpcdl.nn.bound.Bound`."""
        _, *others = self._stash
        self._stash.clear()
        return self._join.forward([*others, x])

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:  # noqa: ARG002
        """See :class:`hpcdl.nn.bound.Bound`."""
        *others, last = self._join.backward(dy)
        self._stash += others
        return last


class Classifier:
    """Pass the logits to the loss of an auxiliary classifier; return the classifier's input unchanged."""

    def __init__(self, stash: list[Array], loss: AuxiliaryLoss) -> None:
        self._stash = stash
        self._loss = loss

    def forward(self, x: Array, train: bool) -> Array:
        """See :class:`hpcdl.nn.bound.Bound`."""
        if train:
            self._loss.put(x)
        return self._stash.pop()

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:  # noqa: ARG002
        """See :class:`hpcdl.nn.bound.Bound`; ValueError without labels since forward."""
        self._stash.append(dy)
        return self._loss.take()
