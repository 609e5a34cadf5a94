from typing import Final

from hpcdl.aggregation.parts.patterns import Place, send_down, sum_up
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm

TRAITS: Final = Aggregation(autotuned=False)


async def tree(comm: Comm, buffer: Array, *, arity: int = 2) -> None:
    """Reduce up a tree of all ranks, then broadcast down the same tree. Any p.

    ::

                  6               A reversed heap: the last rank is the root, leaves come first. With the values
              4       5           1, ..., 7 on seven ranks the sums are 1+2+5 = 8, 3+4+6 = 13 and 8+13+7 = 28.
            0   1   2   3

    A parent has one port, so each level costs ``arity`` messages. A binary tree of p ranks costs
    4(log2(p + 1) - 1) n/BW, half for each direction. FireCaffe (Iandola et al. 2016, section 5.2) draws a binary
    tree and states 2 log2(p) n/BW for the reduction alone; ``binomial`` costs this for both directions.

    Messages, all ranks: 2*(p - 1)
    Bytes, all ranks: 2*n*(p - 1)
    Time, p + 1 a power of two: 4*(log2(p + 1) - 1)*(alpha + n*beta) + 2*(log2(p + 1) - 1)*n*gamma

    Raises ValueError if ``arity`` is less than 1.
    """
    last = comm.size - 1
    place = _place(last - comm.rank, comm.size, arity).renamed(lambda node: last - node)
    await _send_up(comm, buffer, place)
    await send_down(comm, [buffer], place)


async def reduce(comm: Comm, buffer: Array, *, arity: int = 2) -> None:
    """Sum at rank 0, the root of the tree with the ranks in the heap's order; other ranks end with partial sums.

    Messages, all ranks: p - 1
    Bytes, all ranks: n*(p - 1)
    Time, p + 1 a power of two: 2*(log2(p + 1) - 1)*(alpha + n*beta + n*gamma)
    """
    await _send_up(comm, buffer, _place(comm.rank, comm.size, arity))


async def broadcast(comm: Comm, buffer: Array, *, arity: int = 2) -> None:
    """Send rank 0's ``buffer`` to all down the tree of :func:`reduce`.

    Messages, all ranks: p - 1
    Bytes, all ranks: n*(p - 1)
    Time, p + 1 a power of two: 2*(log2(p + 1) - 1)*(alpha + n*beta)
    """
    await send_down(comm, [buffer], _place(comm.rank, comm.size, arity))


def _place(node: int, size: int, arity: int) -> Place:
    """Return the place of a node in a heap whose root is 0; the child with the deepest subtree is first."""
    if arity < 1:
        raise ValueError(f"arity = {arity}: a tree's node has at least 1 child")
    children = range(arity * node + 1, min(arity * node + arity, size - 1) + 1)
    return Place([(node - 1) // arity] if node else [], list(children))


async def _send_up(comm: Comm, buffer: Array, place: Place) -> None:
    await sum_up(comm, [buffer], place._replace(children=place.children[::-1]))
