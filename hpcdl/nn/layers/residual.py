"""Residual block: a branch plus a shortcut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.chain import BoundChain, Chain
from hpcdl.nn.geometry import Blob, Shape
from hpcdl.nn.layers.batch_norm import BatchNorm, BoundBatchNorm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.layer import Layer, Site, Variable
    from hpcdl.nn.ops import Addition, Elementary


class Residual:
    """y = branch(x) + shortcut(x); an empty shortcut is the identity (He et al. 2015, section 3.2).

    With ``relu`` the result is max(y, 0). Layer names must be unique over branch and shortcut.
    """

    def __init__(
        self, name: str, branch: Sequence[Layer], shortcut: Sequence[Layer] = (), *, relu: bool = False
    ) -> None:
        self.name = name
        self.branch = Chain(branch)
        self.shortcut = Chain(shortcut)
        self.relu = relu

    def output(self, shape: Shape) -> Shape:
        """Return the branch's shape; ValueError where the shortcut's shape differs."""
        output, shortcut = self.branch.output(shape), self.shortcut.output(shape)
        if output != shortcut:
            raise ValueError(f"{self.name}: the branch ends in {output}, the shortcut in {shortcut}")
        return output

    def declare(self, shape: Shape) -> list[Variable]:
        """Return the variables of the branch, then those of the shortcut."""
        return self.branch.declare(shape) + self.shortcut.declare(shape)

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`.

        If the branch ends in batch normalisation, as in the paper, that layer also computes the sum and the ReLU.
        """
        output = self.output(shape)
        shortcut, add = self.shortcut.bind(shape, site), site.backend.addition(Blob(shape, site.dtype))
        last = self.branch.layers[-1] if self.branch.layers else None
        if isinstance(last, BatchNorm) and not last.relu:
            branch = Chain(self.branch.layers[:-1]).bind(shape, site)
            return BoundJoined(branch, last.join(output, site.inside(last.name), relu=self.relu), shortcut, add)
        blob = Blob(output, site.dtype)
        return BoundResidual(
            self.branch.bind(shape, site),
            shortcut,
            site.backend.addition(blob),
            site.backend.relu(blob) if self.relu else None,
            add,
        )


class BoundJoined:
    """Bound residual block whose last batch normalisation adds the shortcut."""

    def __init__(
        self, branch: BoundChain, join: BoundBatchNorm, shortcut: BoundChain, add_gradients: Addition
    ) -> None:
        self._branch = branch
        self._join = join
        self._shortcut = shortcut
        self._add_gradients = add_gradients

    def forward(self, x: Array, train: bool) -> Array:
        """See :class:`hpcdl.nn.bound.Bound`."""
        return self._join.forward(self._branch.forward(x, train), train, self._shortcut.forward(x, train))

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """See :class:`hpcdl.nn.bound.Bound`."""
        branch_dy, shortcut_dy = self._join.backward_joined(dy)
        assert shortcut_dy is not None, "bound with a shortcut"
        del dy
        return _sum(
            self._branch.backward(branch_dy, needs_dx),
            self._shortcut.backward(shortcut_dy, needs_dx),
            self._add_gradients,
        )


class BoundResidual:
    """Bound residual block with a separate addition."""

    def __init__(
        self,
        branch: BoundChain,
        shortcut: BoundChain,
        add_outputs: Addition,
        relu: Elementary | None,
        add_gradients: Addition,
    ) -> None:
        self._branch = branch
        self._shortcut = shortcut
        self._add_outputs = add_outputs
        self._relu = relu
        self._add_gradients = add_gradients

    def forward(self, x: Array, train: bool) -> Array:
        """See :class:`hpcdl.nn.bound.Bound`."""
        y = self._add_outputs.forward([self._branch.forward(x, train), self._shortcut.forward(x, train)])
        return y if self._relu is None else self._relu.forward(y)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """See :class:`hpcdl.nn.bound.Bound`."""
        if self._relu is not None:
            dy = self._relu.backward(dy)
        return _sum(
            self._branch.backward(dy, needs_dx), self._shortcut.backward(dy, needs_dx), self._add_gradients
        )


def _sum(branch_dx: Array | None, shortcut_dx: Array | None, add: Addition) -> Array | None:
    return None if branch_dx is None or shortcut_dx is None else add.forward([branch_dx, shortcut_dx])
