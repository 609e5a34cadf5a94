from collections.abc import Sequence
from typing import Final

from hpcdl.aggregation.parts.blocks import swap
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import join
from hpcdl.fabric.vectors import Blocks, partition

TRAITS: Final = Aggregation(shares_ports=True)


async def direct(comm: Comm, buffer: Array) -> None:
    """Direct reduce-scatter, then direct allgather: all messages of a phase are under way at once. Any p.

    ::

        rank 0   [a][b][c]      Rank 0 receives a from all ranks, rank 1 receives b, ...; each sends its sum to
        rank 1   [a][b][c]      all: the pairwise exchange of Thakur, Rabenseifner & Gropp 2005 without rounds.
        rank 2   [a][b][c]

    Two latencies if a port carries several messages at once. If it carries one after the other, as in simulation,
    there are 2*(p - 1) turns, as in a ring.

    Each rank adds in the order of distance, for equal results in every run. Memory: n*(p - 1)/p bytes.

    m = alpha + n/p*beta
    g = n/p*gamma
    Messages, busiest rank: 2*(p - 1)
    Bytes, busiest rank: 2*n*(p - 1)/p
    Time, p > 1: p*m + (p - 2)*max(m, g) + g
    """
    chunks = partition(buffer, comm.size)
    await reduce_scatter(comm, chunks)
    await allgather(comm, chunks)


async def reduce_scatter(comm: Comm, chunks: Sequence[Array]) -> None:
    """Each rank r ends with the sum of chunk r.

    The time is for ports that carry one message after the other, as in :func:`allgather`.

    m = alpha + n/p*beta
    g = n/p*gamma
    Messages, busiest rank: p - 1
    Bytes, busiest rank: n*(p - 1)/p
    Time, p > 1: m + (p - 2)*max(m, g) + g
    """
    size, rank = comm.size, comm.rank
    mine = chunks[rank]
    if size == 1:
        return
    with comm.scratch(len(mine) * (size - 1), mine) as inbox:
        arriving = partition(inbox, size - 1)
        under_way = []
        for distance, part in enumerate(arriving, 1):
            to, source = (rank + distance) % size, (rank - distance) % size
            under_way.append(comm.start(comm.exchange(chunks[to], to, part, source), shared_tags=True))
        for exchange, part in zip(under_way, arriving, strict=True):
            await exchange
            await comm.add(mine, part)


async def allgather(comm: Comm, chunks: Sequence[Array]) -> None:
    """All ranks get each rank r's chunk r.

    The time is for ports that carry one message after the other: in the order of distance, as they are started.

    Messages, busiest rank: p - 1
    Bytes, busiest rank: n*(p - 1)/p
    Time: (p - 1)*(alpha + n/p*beta)
    """
    size, rank = comm.size, comm.rank
    under_way = []
    for distance in range(1, size):
        to, source = (rank + distance) % size, (rank - distance) % size
        under_way.append(comm.start(comm.exchange(chunks[rank], to, chunks[source], source), shared_tags=True))
    await join(under_way)


async def all_to_all(comm: Comm, chunks: Sequence[Array]) -> None:
    """Rank i gets every rank's chunk i; the chunks are equally long. All messages are under way at once.

    Messages, busiest rank: p - 1
    Bytes, busiest rank: n*(p - 1)/p
    Time: (p - 1)*(alpha + n/p*beta)
    """
    with comm.scratch(comm.size * len(chunks[0]), chunks[0]) as inbox:
        arriving = partition(inbox, comm.size)
        await _exchanged(comm, chunks, arriving)
        for source, (chunk, arrived) in enumerate(zip(chunks, arriving, strict=True)):
            if source != comm.rank:
                await comm.get(chunk, arrived, comm.rank)


async def alltoallv(comm: Comm, blocks: Blocks) -> None:
    """Rank i gets every rank's block i, of any length. All messages are under way at once.

    Messages, busiest rank: p - 1
    """
    await _exchanged(comm, *blocks)
    await comm.get(blocks.incoming[comm.rank], blocks.outgoing[comm.rank], comm.rank)


async def _exchanged(comm: Comm, outgoing: Sequence[Array], incoming: Sequence[Array]) -> None:
    size, rank = comm.size, comm.rank
    under_way = []
    for distance in range(1, size):
        to, source = (rank + distance) % size, (rank - distance) % size
        if exchange := swap(comm, outgoing[to], to, incoming[source], source):
            under_way.append(comm.start(exchange, shared_tags=True))
    await join(under_way)
