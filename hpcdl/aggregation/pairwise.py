from typing import Final

from hpcdl.aggregation.parts.blocks import swap
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import Blocks, partition

TRAITS: Final = Aggregation(autotuned=False)


async def pairwise(comm: Comm, buffer: Array) -> None:
    """Pairwise exchange: reduce-scatter, then allgather (Thakur, Rabenseifner & Gropp 2005). Any p.

    ::

        round 1   0 -> 1 -> 2 -> 3 -> 0      In round k a rank sends to the rank at the distance k. Each port
        round 2   0 -> 2 -> 0, 1 -> 3 -> 1   carries one message at a time, and each chunk goes to its destination
        round 3   0 -> 3 -> 2 -> 1 -> 0      at once.

    Messages, busiest rank: 2*(p - 1)
    Bytes, busiest rank: 2*n*(p - 1)/p
    Time: 2*(p - 1)*alpha + 2*n*(p - 1)/p*beta + n*(p - 1)/p*gamma
    """
    chunks, size, rank = partition(buffer, comm.size), comm.size, comm.rank
    mine, peers = chunks[rank], [((rank + k) % size, (rank - k) % size) for k in range(1, size)]
    with comm.scratch(len(mine), mine) as inbox:
        for to, source in peers:
            await comm.exchange(chunks[to], to, inbox, source)
            await comm.add(mine, inbox)
    for to, source in peers:
        await comm.exchange(mine, to, chunks[source], source)


async def alltoallv(comm: Comm, blocks: Blocks) -> None:
    """Rank i gets every rank's block i, of any length, in p - 1 rounds.

    Messages, busiest rank: p - 1
    """
    size, rank, (outgoing, incoming) = comm.size, comm.rank, blocks
    for distance in range(1, size):
        to, source = (rank + distance) % size, (rank - distance) % size
        if exchange := swap(comm, outgoing[to], to, incoming[source], source):
            await exchange
    await comm.get(incoming[rank], outgoing[rank], rank)
