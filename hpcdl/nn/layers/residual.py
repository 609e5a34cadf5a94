"""A branch beside a shortcut: the residual block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.chain import BoundChain, Chain
from hpcdl.nn.geometry import Blob, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.layer import Bound, Layer, Site, Variable
    from hpcdl.nn.ops import Addition


class Residual:
    """y = branch(x) + shortcut(x); an empty shortcut is the identity (He et al. 2015, section 3.2).

    The ReLU after the sum is a layer of its own. Names must be unique over branch and shortcut.
    """

    def __init__(self, name: str, branch: Sequence[Layer], shortcut: Sequence[Layer] = ()) -> None:
        self.name = name
        self.branch = Chain(branch)
        self.shortcut = Chain(shortcut)

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
        """See :class:`hpcdl.nn.layer.Layer`."""
        return BoundResidual(
            self.branch.bind(shape, site),
            self.shortcut.bind(shape, site),
            site.backend.addition(Blob(self.output(shape), site.dtype)),
            site.backend.addition(Blob(shape, site.dtype)),
        )


class BoundResidual:
    """A branch and a shortcut at work."""

    def __init__(
        self, branch: BoundChain, shortcut: BoundChain, add_outputs: Addition, add_gradients: Addition
    ) -> None:
        self._branch = branch
        self._shortcut = shortcut
        self._add_outputs = add_outputs
        self._add_gradients = add_gradients

    def forward(self, x: Array, train: bool) -> Array:
        """See :class:`hpcdl.nn.layer.Bound`."""
        return self._add_outputs.forward([self._branch.forward(x, train), self._shortcut.forward(x, train)])

    def backward(self, dy: Array, wanted: bool) -> Array | None:
        """See :class:`hpcdl.nn.layer.Bound`."""
        through, beside = self._branch.backward(dy, wanted), self._shortcut.backward(dy, wanted)
        if through is None or beside is None:
            return None
        return self._add_gradients.forward([through, beside])
