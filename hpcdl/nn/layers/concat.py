"""Parallel branches concatenated on channels: the inception module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.chain import BoundChain, Chain
from hpcdl.nn.geometry import Blob, ConcatenationGeometry, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.layer import Layer, Site, Variable
    from hpcdl.nn.ops import Addition, Concatenation


class Concat:
    """Apply every branch (a list of layers) to the input and concatenate the outputs on channels.

    Szegedy et al. 2014, section 4. Layer names must be unique over all branches.
    """

    def __init__(self, name: str, branches: Sequence[Sequence[Layer]]) -> None:
        self.name = name
        self.branches = tuple(Chain(layers) for layers in branches)

    def output(self, shape: Shape) -> Shape:
        """Return (H, W, sum of channels); ValueError where branches differ in more than channels."""
        outputs = self._outputs(shape)
        return (*outputs[0][:-1], sum(output[-1] for output in outputs))

    def declare(self, shape: Shape) -> list[Variable]:
        """Return the variables of the branches, in order."""
        return [variable for branch in self.branches for variable in branch.declare(shape)]

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`."""
        return BoundConcat(
            [branch.bind(shape, site) for branch in self.branches],
            site.backend.concatenation(ConcatenationGeometry(self._outputs(shape), site.dtype)),
            site.backend.addition(Blob(shape, site.dtype)),
        )

    def _outputs(self, shape: Shape) -> tuple[Shape, ...]:
        if len(self.branches) < 2:
            raise ValueError(f"{self.name}: needs two branches or more, got {len(self.branches)}")
        outputs = tuple(branch.output(shape) for branch in self.branches)
        if len({output[:-1] for output in outputs}) != 1:
            raise ValueError(f"{self.name}: branches end in {outputs}, which differ in more than channels")
        return outputs


class BoundConcat:
    """Bound parallel branches."""

    def __init__(self, branches: Sequence[BoundChain], join: Concatenation, add: Addition) -> None:
        self._branches = branches
        self._join = join
        self._add = add

    def forward(self, x: Array, train: bool) -> Array:
        """See :class:`hpcdl.nn.bound.Bound`."""
        return self._join.forward([branch.forward(x, train) for branch in self._branches])

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """See :class:`hpcdl.nn.bound.Bound`."""
        terms = [
            branch.backward(piece, needs_dx)
            for branch, piece in zip(self._branches, self._join.backward(dy), strict=True)
        ]
        return self._add.forward([term for term in terms if term is not None]) if needs_dx else None
