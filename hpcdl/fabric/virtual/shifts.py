"""Symmetry of programs: the ranks of one host stand for those of all hosts.

The ranks of a program may form a grid, such as a ring or a torus, in which each rank does the same as any other,
with peers shifted along the sides. If hosts are equal, too, a shift by whole hosts changes no time. The message of
rank a to rank b then arrives when the shifted message arrives whose receiver is on the first host. So it is enough
to run the programs of the first host's ranks: a ring of 16,384 hosts costs as much as one rank.

No program claims this symmetry, it is checked. The parts of a communicator must map onto each other, messages must
match, and the ranks of two other hosts must do the same as those of the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from math import prod

from hpcdl.fabric.network import Network


class AsymmetryError(Exception):
    """A program does not have the symmetry of a grid; ``sides``: those of a finer grid, which it may have."""

    def __init__(self, what: str, sides: Sequence[int] = ()) -> None:
        super().__init__(what)
        self.sides = sides


class Shifts:
    """Shifts of a grid of ranks along its sides by multiples of a stride, different for each side.

    ``sides``: lengths of the grid, of which the last is numbered first. ``first``: the first representative.
    """

    def __init__(self, sides: Sequence[int], strides: Sequence[int], first: int = 0) -> None:
        self._sides, self._strides = sides, strides
        self._peers = dict[tuple[int, int], int]()
        weights = [prod(sides[axis + 1 :]) for axis in range(len(sides))]
        self._axes = [
            (side, stride, weight, first // weight % side)
            for side, stride, weight in zip(sides, strides, weights, strict=True)
        ]
        self.representatives = range(first, first + prod(strides))
        """The ranks that stand for all, those of one host."""

    def shifted(self, source: int, dest: int) -> tuple[int, int]:
        """Return two ranks after the shift that moves ``dest`` to its representative."""
        moved_source = moved_dest = 0
        for side, stride, weight, first in self._axes:
            place = dest // weight % side
            kept = first + place % stride
            moved_dest += kept * weight
            moved_source += (source // weight + kept - place) % side * weight
        return moved_source, moved_dest

    def others(self) -> Iterator[Shifts]:
        """Yield the shifts whose representatives are on a host in the middle of all sides, and on the last one."""
        middle = sum(side // stride // 2 * stride * weight for side, stride, weight, _ in self._axes)
        for first in {middle, prod(self._sides) - len(self.representatives)}:
            yield Shifts(self._sides, self._strides, first)

    def peer(self, source: int, dest: int) -> int:
        """Return ``source`` after the shift that moves ``dest`` to the first host."""
        if (source, dest) not in self._peers:
            self._peers[source, dest] = Shifts(self._sides, self._strides).shifted(source, dest)[0]
        return self._peers[source, dest]

    def check(self, parts: Mapping[int, object]) -> None:
        """Raise AsymmetryError unless the shifts move the ``parts`` of a communicator, by rank, onto its parts.

        Shifts that move the communicator onto another one are not checked.
        """
        for axis, (side, stride, weight, _) in enumerate(self._axes):

            def moved(rank: int, by: int, side: int = side, weight: int = weight) -> int:
                place = rank // weight % side
                return rank + ((place + by) % side - place) * weight

            images = dict[object, object]()
            if any(moved(rank, stride) not in parts for rank in parts) or all(
                images.setdefault(part, parts[moved(rank, stride)]) is parts[moved(rank, stride)]
                for rank, part in parts.items()
            ):
                continue
            begin, part = next(iter(parts.items()))
            block = len([*takewhile(lambda by: parts.get(moved(begin, by)) is part, range(side))])  # noqa: B023
            finer = side % block == 0 and 1 < block < side
            raise AsymmetryError(
                "a division into parts that no shift moves onto each other",
                [*self._sides[:axis], side // block, block, *self._sides[axis + 1 :]] if finer else (),
            )


def shifts(sides: Sequence[int], network: Network) -> Shifts | None:
    """Return the shifts of a grid of ranks that move whole hosts of ``network``; None if there are none."""
    ranks = prod(sides)
    if network.topology is not None:
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
    return Shifts(sides, strides) if prod(strides) < ranks else None
