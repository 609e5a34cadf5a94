"""Hybrid parallelism in passes: fully connected layers work on one part of the group's batch after the other.

Krizhevsky 2014, section 4: convolutions are data-parallel, so that each of K ranks has the activations of its own
images; fully connected layers are split and need those of all. Scheme (a), ``all``, gathers all images at once. In
K passes the activations of the next part move while the fully connected layers work on the present one. Scheme
(b), ``turns``: each rank sends its images in turn. Scheme (c), ``slices``: in each pass every rank sends 1/K of
its images, so that all links work in every pass. All three send the same bytes and give the same gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.data.parts.sharding import bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Comm
    from hpcdl.nn.accumulation import AccumulatingStage
    from hpcdl.nn.split.layout import Range
    from hpcdl.training.parts.flow import Flow


def _in_turns(shares: Sequence[Range], rank: int, step: int) -> Range:
    """Return all images of ``rank``, if it is its turn."""
    length = shares[rank][1] - shares[rank][0]
    return (0, length) if rank == step else (0, 0)


def _in_slices(shares: Sequence[Range], rank: int, step: int) -> Range:
    """Return the slice of ``rank``'s images of a pass."""
    ends = bounds(shares[rank][1] - shares[rank][0], len(shares))
    return ends[step], ends[step + 1]


EXCHANGES: Final = {"all": None, "turns": _in_turns, "slices": _in_slices}
"""Schemes: each rank's images in a pass, of its own; None: all at once."""


class Passes:
    """Layers from ``first`` on, which are split, and two flows that alternate: one moves, one is in use."""

    def __init__(
        self, exchange: str, first: int, flows: tuple[Flow, Flow], stages: Sequence[AccumulatingStage], group: Comm
    ) -> None:
        self._part = EXCHANGES[exchange]
        self.first = first
        self.flows = flows
        self.stages = stages
        self.group = group

    def own(self, shares: Sequence[Range], number: int) -> list[Range]:
        """Return which of its own images each rank has in a pass."""
        assert self._part is not None, "in passes"
        return [self._part(shares, rank, number) for rank in range(len(shares))]
