"""Gradient accumulation: bindings of the same layers for several microbatches, whose gradients are summed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.loss import AuxiliaryLoss
    from hpcdl.nn.stage import Stage


class AccumulatingStage:
    """A stage whose backward adds to the gradients of its replica.

    ``total`` is the layer's part of the replica's gradients; ``part``: vector of the layer's backward.
    """

    def __init__(self, stage: Stage, total: Array, part: Array) -> None:
        self.name = stage.name
        self.span = stage.span
        self._stage = stage
        self._total = total
        self._part = part

    def forward(self, x: Array) -> Array:
        """See :meth:`hpcdl.nn.stage.Stage.forward`, in training."""
        return self._stage.forward(x)

    def backward(self, dy: Array, *, first: bool) -> Array | None:
        """Overwrite the gradients of ``span`` if ``first``, else add to them; return the input's gradient."""
        dx = self._stage.backward(dy)
        if first:
            self._total[:] = self._part
        else:
            self._total += self._part
        return dx


@dataclass(frozen=True)
class Binding:
    """The layers of a replica with activations of one microbatch."""

    stages: tuple[AccumulatingStage, ...]
    heads: tuple[AuxiliaryLoss, ...]

    def auxiliary_loss(self, labels: Array, scale: float) -> float:
        """Return the sum of the weighted losses of auxiliary classifiers; see :class:`AuxiliaryLoss`."""
        return sum(head(labels, scale) for head in self.heads)
