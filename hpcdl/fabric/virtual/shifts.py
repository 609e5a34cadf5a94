"""Symmetry of programs: the ranks of one host stand for those of all hosts.

The ranks of a scheme may form a grid, such as a ring or a torus, in which each rank does the same as any other,
with peers shifted along the sides. If hosts are equal, too, a shift by whole hosts changes no time. The message of
rank a to rank b then arrives when the shifted message arrives whose receiver is on the first host. So it is enough
to run the programs of the first host's ranks: a ring of 16,384 hosts costs as much as one rank.
"""

from collections.abc import Sequence
from math import prod

from hpcdl.fabric.network import Network


class AsymmetryError(Exception):
    """A program uses an operation that is not simulated by symmetry."""


class Shifts:
    """Shifts of a grid of ranks along its sides by multiples of a stride, different for each side."""

    def __init__(self, sides: Sequence[int], strides: Sequence[int]) -> None:
        """``sides``: lengths of the grid, of which the last is numbered first."""
        weights = [prod(sides[axis + 1 :]) for axis in range(len(sides))]
        self._axes = list(zip(sides, strides, weights, strict=True))
        self.representatives = prod(strides)
        """Number of ranks that stand for all, the first ones."""

    def shifted(self, source: int, dest: int) -> tuple[int, int]:
        """Return two ranks after the shift that moves ``dest`` to its representative."""
        moved_source = moved_dest = 0
        for side, stride, weight in self._axes:
            place = dest // weight % side
            kept = place % stride
            moved_dest += kept * weight
            moved_source += (source // weight + kept - place) % side * weight
        return moved_source, moved_dest


def shifts(sides: Sequence[int], network: Network) -> Shifts | None:
    """Return the shifts of a grid of ranks that move whole hosts of ``network``; None if there are none."""
    ranks = prod(sides)
    if not sides or network.topology is not None or network.slow:
        return None
    together = 1
    if network.common_link(ranks) is None:
        together = network.ranks_per_host
        if network.hosts or ranks % together:
            return None
    strides = list[int]()
    for side in reversed(sides):
        if side % together and together % side:
            return None
        strides.insert(0, min(side, together))
        together //= strides[0]
    return Shifts(sides, strides)
