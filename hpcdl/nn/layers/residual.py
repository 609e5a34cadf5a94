"""A branch beside a shortcut: the residual block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.chain import BoundChain, Chain
from hpcdl.nn.geometry import Blob, Shape
from hpcdl.nn.layers.batch_norm import BatchNorm, BoundBatchNorm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.layer import Bound, Layer, Site, Variable
    from hpcdl.nn.ops import Addition, Elementary


class Residual:
    """y = branch(x) + shortcut(x); an empty shortcut is the identity (He et al. 2015, section 3.2).

    With ``relu`` what comes out is max(y, 0). Names must be unique over branch and shortcut.
    """

    def __init__(
        self, name: str, branch: Sequence[Layer], shortcut: Sequence[Layer] = (), *, relu: bool = False
    ) -> None:
        self.name = name
        self.branch = Chain(branch)
        self.shortcut = Chain(shortcut)
        self.relu = relu

    def output(self, shape: Shape) -> Shape:
        """Return the branch's shape; ValueError where the shortcut ends in another."""
        output, beside = self.branch.output(shape), self.shortcut.output(shape)
        if output != beside:
            raise ValueError(f"{self.name}: the branch ends in {output}, the shortcut in {beside}")
        return output

    def declare(self, shape: Shape) -> list[Variable]:
        """Those of the branch, then those of the shortcut."""
        return self.branch.declare(shape) + self.shortcut.declare(shape)

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`.

        A branch that ends in batch normalisation, as all of the paper's do, leaves the sum and the ReLU to it.
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
    """A branch and a shortcut that meet in a batch normalisation."""

    def __init__(
        self, branch: BoundChain, join: BoundBatchNorm, shortcut: BoundChain, add_gradients: Addition
    ) -> None:
        self._branch = branch
        self._join = join
        self._shortcut = shortcut
        self._add_gradients = add_gradients

    def forward(self, x: Array, train: bool) -> Array:
        """See :class:`hpcdl.nn.layer.Bound`."""
        return self._join.forward(self._branch.forward(x, train), train, self._shortcut.forward(x, train))

    def backward(self, dy: Array, wanted: bool) -> Array | None:
        """See :class:`hpcdl.nn.layer.Bound`."""
        through, beside = self._join.backward_joined(dy)
        assert beside is not None, "bound with a shortcut"
        del dy
        return _sum(
            self._branch.backward(through, wanted), self._shortcut.backward(beside, wanted), self._add_gradients
        )


class BoundResidual:
    """A branch and a shortcut at work."""

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
        """See :class:`hpcdl.nn.layer.Bound`."""
        y = self._add_outputs.forward([self._branch.forward(x, train), self._shortcut.forward(x, train)])
        return y if self._relu is None else self._relu.forward(y)

    def backward(self, dy: Array, wanted: bool) -> Array | None:
        """See :class:`hpcdl.nn.layer.Bound`."""
        if self._relu is not None:
            dy = self._relu.backward(dy)
        return _sum(self._branch.backward(dy, wanted), self._shortcut.backward(dy, wanted), self._add_gradients)


def _sum(through: Array | None, beside: Array | None, add: Addition) -> Array | None:
    return None if through is None or beside is None else add.forward([through, beside])
