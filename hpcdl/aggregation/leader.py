from typing import Final

from hpcdl.aggregation import binomial
from hpcdl.aggregation.parts.traits import Aggregation, component, nodes, phases
from hpcdl.fabric.comm import Array, Comm

TRAITS: Final = Aggregation(composite=True, parts=("inner", "outer"), autotuned=False)


async def leader(
    comm: Comm, buffer: Array, *, ranks_per_node: int = 2, inner: str = "binomial", outer: str = "ring"
) -> None:
    """Reduce to a leader in each node, allreduce among the leaders, broadcast in each node. Any p.

    ::

        node 0   0 <= 1, 2      Nodes are filled rank by rank; the last one may have fewer ranks. A node's first
                 |              rank is its leader, the only one that sends to other nodes (Jia et al. 2018;
        node 1   3 <= 4, 5      MPI libraries use it for short vectors).

    An ``inner`` scheme without a reduction and a broadcast sums on all ranks of a node, and a binomial tree
    broadcasts. The costs are those of the defaults.

    g = min(ranks_per_node, p)
    N = ceil(p/g)
    Messages, all ranks: 2*(p - N) + 2*N*(N - 1)
    Bytes, all ranks: 2*n*(p - 1)
    usual = inner == "binomial" and outer == "ring" and p%g == 0 and g & (g - 1) == 0
    Time, usual: 2*log2(g)*(alpha + n*beta) + log2(g)*n*gamma + 2*(N - 1)*alpha + n*(N - 1)/N*(2*beta + gamma)

    Raises ValueError if ``ranks_per_node`` is less than 1, or a scheme of the two is itself composite.
    """
    inside, allreduce = component("inner", inner), component("outer", outer)
    reduce, broadcast = phases(inside, "reduce", "broadcast") or [inside, binomial.broadcast]
    node, peers = await nodes(comm, ranks_per_node)
    await reduce(node, buffer)
    if node.rank == 0:
        await allreduce(peers, buffer)
    await broadcast(node, buffer)
