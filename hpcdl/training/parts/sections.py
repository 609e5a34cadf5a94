"""Sections of consecutive layers that work on microbatches, and the microbatches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.split.layout import Range
    from hpcdl.nn.stage import Stage
    from hpcdl.training.parts.flow import Flow
    from hpcdl.training.parts.pipeline.schedules import Pass


class Section(NamedTuple):
    """Consecutive layers that work on the same microbatches, in the order of a schedule."""

    begin: int
    """Number of the first layer among those of the replica."""
    bindings: Sequence[Sequence[Stage]]
    """The layers, bound once for each microbatch in flight; microbatches take them in turn."""
    flows: Sequence[Flow]
    """Flows of activations, which microbatches take in turn."""
    order: Sequence[Pass]


class Microbatch(NamedTuple):
    """Images that pass through the layers together."""

    labels: Array
    """Labels of this rank's images."""
    shares: Sequence[Range]
    """Shares of the model group's ranks in the images."""
