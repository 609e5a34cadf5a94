"""Layers known by their sizes alone, for replays and predictions."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdl.nn.geometry import Shape
from hpcdl.nn.initial import zeros
from hpcdl.nn.layer import Site, Variable
from hpcdl.nn.ops import Bound


@dataclass(frozen=True, slots=True)
class SizedLayer:
    """Layer without arithmetic, such as a transformer block; its fields are the columns of a table of layers.

    It states FLOP for each sample or seconds for a batch, or both; None: not stated.
    """

    name: str
    parameters: int
    activations: int
    """Elements of the output for one sample."""
    forward_flop: int | None = None
    """Of one sample."""
    backward_flop: int | None = None
    forward_seconds: float | None = None
    """Of ``batch`` samples."""
    backward_seconds: float | None = None
    batch: int = 1
    """Samples to which the seconds belong."""
    update_seconds: float | None = None
    """Time of the optimizer, whatever the batch."""
    group: str | None = None
    """Name that consecutive layers share which sharded training gathers together; None: the layer alone."""

    def output(self, _shape: Shape) -> Shape:
        return (self.activations,)

    def declare(self, _shape: Shape) -> list[Variable]:
        return [Variable("weight", (self.parameters,), zeros, decay=True)] if self.parameters else []

    def bind(self, _shape: Shape, site: Site) -> Bound:
        """Raise ValueError: only the backend of sizes, which binds layers itself, can have one."""
        raise ValueError(f"{site.path}: has sizes and no arithmetic: it can be replayed and predicted only")
