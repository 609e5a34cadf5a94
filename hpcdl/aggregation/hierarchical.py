from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.aggregation import ring
from hpcdl.aggregation.composing import halves, part, whole
from hpcdl.fabric.comm import Parts, partition

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm


async def hierarchical(
    comm: Comm, buffer: Array, *, ranks_per_node: int = 2, inner: str = "ring", outer: str = "ring"
) -> None:
    """Reduce-scatter within nodes, allreduce of each chunk across them, allgather within. Any p.

    ::

        node 0   0 - 1 - 2      Nodes are filled rank by rank. Along a line ``inner`` leaves each rank the sum
                 |   |   |      of a chunk, down a column ``outer`` sums that, and the line shares it: a node's
        node 1   3 - 4 - 5      ranks all use its way out, and no more than one rank alone would (Horovod's
                                hierarchical allreduce; full lanes, Traff & Hunold 2020).

    A last node with fewer ranks decides into how many chunks the vector is cut, for each chunk has one owner in
    every node; in the fuller nodes the ranks beyond own none. An ``inner`` scheme that is not made of the two
    halves sums whole vectors in place of the first, and a ring gathers. The costs are those of the defaults.

    g = ranks_per_node
    N = ceil(p/g)
    Messages, all ranks: 2*(p//g)*g*(g - 1) + 2*(p%g)*(p%g - 1) + 2*N*(N - 1)*(p%g or g)
    Bytes, all ranks: 2*n*(p - 1)
    Time, p%g == 0 and inner == outer == "ring": 2*(g + N - 2)*alpha + 2*n*(p - 1)/p*beta + n*(p - 1)/p*gamma

    Raises ValueError if ``ranks_per_node`` is less than 1, or a scheme of the two is itself made of others.
    """
    inside, allreduce = whole("inner", inner), whole("outer", outer)
    in_place_of_halves = [lambda node, _: inside(node, buffer), ring.allgather]
    reduce_scatter, allgather = halves(inside, "reduce_scatter", "allgather") or in_place_of_halves
    if ranks_per_node < 1:
        raise ValueError(f"ranks_per_node = {ranks_per_node}: a node has at least 1 rank")
    number, place = divmod(comm.rank, ranks_per_node)
    node = await part(comm, number, ("node", ranks_per_node))
    across = await part(comm, place, ("across", ranks_per_node))
    owners = comm.size % ranks_per_node or ranks_per_node
    chunks = Parts(buffer, [*partition(buffer, owners), *[buffer[:0]] * (node.size - owners)])
    await reduce_scatter(node, chunks)
    if place < owners:
        await allreduce(across, chunks[place])
    await allgather(node, chunks)
