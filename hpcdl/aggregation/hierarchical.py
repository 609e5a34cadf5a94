from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.aggregation import ring
from hpcdl.aggregation.parts.composing import component, halves
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.vectors import Parts, partition

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm

TRAITS: Final = Aggregation(composite=True, parts=("inner", "outer"), autotuned=False)


async def hierarchical(
    comm: Comm, buffer: Array, *, ranks_per_node: int = 2, inner: str = "ring", outer: str = "ring"
) -> None:
    """Reduce-scatter within nodes, allreduce of each chunk across them, allgather within. Any p.

    ::

        node 0   0 - 1 - 2      Nodes are filled rank by rank. ``inner`` reduce-scatters along a row, ``outer``
                 |   |   |      sums each chunk down a column, and ``inner`` allgathers along the row. All ranks
        node 1   3 - 4 - 5      of a node send to other nodes, together no more bytes than one rank would
                                (Horovod's hierarchical allreduce; full lanes, Traff & Hunold 2020).

    The number of chunks is that of the ranks in the smallest node, because each chunk has one owner in every node;
    further ranks own none. An ``inner`` scheme without the two halves sums whole vectors, and a ring allgathers.
    The costs are those of the defaults.

    g = ranks_per_node
    N = ceil(p/g)
    Messages, all ranks: 2*(p//g)*g*(g - 1) + 2*(p%g)*(p%g - 1) + 2*N*(N - 1)*(p%g or g)
    Bytes, all ranks: 2*n*(p - 1)
    Time, p%g == 0 and inner == outer == "ring": 2*(g + N - 2)*alpha + 2*n*(p - 1)/p*beta + n*(p - 1)/p*gamma

    Raises ValueError if ``ranks_per_node`` is less than 1, or a scheme of the two is itself composite.
    """
    inside, allreduce = component("inner", inner), component("outer", outer)
    without_halves = [lambda node, _: inside(node, buffer), ring.allgather]
    reduce_scatter, allgather = halves(inside, "reduce_scatter", "allgather") or without_halves
    if ranks_per_node < 1:
        raise ValueError(f"ranks_per_node = {ranks_per_node}: a node has at least 1 rank")
    number, place = divmod(comm.rank, ranks_per_node)
    node = await comm.subcommunicator(number, ("node", ranks_per_node))
    across = await comm.subcommunicator(place, ("across", ranks_per_node))
    owners = comm.size % ranks_per_node or ranks_per_node
    chunks = Parts(buffer, [*partition(buffer, owners), *[buffer[:0]] * (node.size - owners)])
    await reduce_scatter(node, chunks)
    if place < owners:
        await allreduce(across, chunks[place])
    await allgather(node, chunks)
