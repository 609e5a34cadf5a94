from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    if arity < 1:
        raise ValueError(f"arity = {arity}: a tree's node has at least 1 child")
    last = comm.size - 1
    node = last - comm.rank
    children = [last - child for child in range(arity * node + 1, min(arity * node + arity, last) + 1)]
    with comm.scratch(len(buffer) if children else 0, buffer) as inbox:
        # the first child has the deepest subtree: hear it last, tell it first
        for child in reversed(children):
            await comm.recv(inbox, child, tag=0)
            await comm.add(buffer, inbox)
    if node > 0:
        parent = last - (node - 1) // arity
        await comm.send(buffer, parent)
        await comm.recv(buffer, parent, tag=0)
    for child in children:
        await comm.send(buffer, child)
