from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcdl.fabric.comm import Array, Comm


async def tree(comm: Comm, buffer: Array, *, arity: int = 2) -> None:
    """Reduction tree whose inner nodes contribute, and the way back (FireCaffe, section 5.2). Any p.

    ::

                  6               The last rank is the root and leaves come first, as in a heap read
              4       5           backwards: with 1..7 on seven ranks the sums are 1+2+5 = 8, 3+4+6 = 13
            0   1   2   3         and 8+13+7 = 28.

    A parent has one port, so each level costs ``arity`` messages: with two, FireCaffe's 2 log2(p) n/BW, and
    as much for the way back, which the paper does not count.

    Messages, all ranks: 2*(p - 1)
    Bytes, all ranks: 2*n*(p - 1)
    Time, p + 1 a power of two: 4*(log2(p + 1) - 1)*(alpha + n*beta) + 2*(log2(p + 1) - 1)*n*gamma

    Raises ValueError if ``arity`` is less than 1.
    """
    last = comm.size - 1
    place = _place(last - comm.rank, comm.size, arity).renamed(lambda node: last - node)
    await _add_up(comm, buffer, place)
    await _hand_down(comm, buffer, place)


async def reduce(comm: Comm, buffer: Array, *, arity: int = 2) -> None:
    """Sum at rank 0, the root of the same tree with the ranks in the heap's order; elsewhere a part of the sum.

    Messages, all ranks: p - 1
    Bytes, all ranks: n*(p - 1)
    Time, p + 1 a power of two: 2*(log2(p + 1) - 1)*(alpha + n*beta + n*gamma)
    """
    await _add_up(comm, buffer, _place(comm.rank, comm.size, arity))


async def broadcast(comm: Comm, buffer: Array, *, arity: int = 2) -> None:
    """Send rank 0's ``buffer`` to all, down the same tree.

    Messages, all ranks: p - 1
    Bytes, all ranks: n*(p - 1)
    Time, p + 1 a power of two: 2*(log2(p + 1) - 1)*(alpha + n*beta)
    """
    await _hand_down(comm, buffer, _place(comm.rank, comm.size, arity))


class _Place(NamedTuple):
    parents: list[int]
    """None for the root, else one."""
    children: list[int]
    """The one with the deepest subtree first."""

    def renamed(self, rank_of: Callable[[int], int]) -> _Place:
        """The same place, ranks instead of nodes."""
        return _Place([rank_of(node) for node in self.parents], [rank_of(node) for node in self.children])


def _place(node: int, size: int, arity: int) -> _Place:
    """Of a node in a heap whose root is 0."""
    if arity < 1:
        raise ValueError(f"arity = {arity}: a tree's node has at least 1 child")
    children = range(arity * node + 1, min(arity * node + arity, size - 1) + 1)
    return _Place([(node - 1) // arity] if node else [], list(children))


async def _add_up(comm: Comm, buffer: Array, place: _Place) -> None:
    with comm.scratch(len(buffer) if place.children else 0, buffer) as inbox:
        for child in reversed(place.children):  # hear the deepest last
            await comm.recv(inbox, child, tag=0)
            await comm.add(buffer, inbox)
    for parent in place.parents:
        await comm.send(buffer, parent)


async def _hand_down(comm: Comm, buffer: Array, place: _Place) -> None:
    for parent in place.parents:
        await comm.recv(buffer, parent, tag=0)
    for child in place.children:  # tell the deepest first
        await comm.send(buffer, child)
