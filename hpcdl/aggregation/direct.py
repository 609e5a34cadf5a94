from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.fabric.comm import partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array, Comm


async def direct(comm: Comm, buffer: Array) -> None:
    """Direct reduce-scatter, then direct allgather: all messages of a phase are under way at once. Any p.

    ::

        rank 0   [a][b][c]      Rank 0 gets everybody's a, rank 1 everybody's b, ...: they add them up and send
        rank 1   [a][b][c]      each sum to all: scatter-reduce, or the pairwise exchange of Thakur,
        rank 2   [a][b][c]      Rabenseifner & Gropp 2005 without its rounds.

    Two latencies where a network carries messages of one port beside each other. Where a port takes one message
    after the other, as in the simulation, there are 2*(p - 1) turns as in a ring, or more, for who meets whom is
    left to chance. Beyond two ranks they come to the second phase one by one, and its time has no closed form. The
    last to come has p - 1 sums to send, so that it takes (p - 1)*m more than the first phase at least; a message
    finds each of its ports taken by p - 2 others at most, so that it takes (2*p - 3)*m more at most but for gaps
    too short to use. The first phase's time and this bound are what simulations of up to 64 ranks show, unproven.

    The parts of a chunk are added in the order of the ranks' distance, whichever comes first, and until then kept:
    (p - 1)/p*n bytes.

    m = alpha + n/p*beta
    Messages, busiest rank: 2*(p - 1)
    Bytes, busiest rank: 2*n*(p - 1)/p
    Time, p <= 2: 2*(p - 1)*m + n*(p - 1)/p*gamma
    """
    chunks = partition(buffer, comm.size)
    await reduce_scatter(comm, chunks)
    await allgather(comm, chunks)


async def reduce_scatter(comm: Comm, chunks: Sequence[Array]) -> None:
    """Each rank r ends with the sum of chunk r.

    Where ports take one message after the other, a rank has met its next neighbours after p - 1 turns, those one
    further a turn later at most, and all after N - 1, as in :func:`allgather`. It adds in that order.

    N = 2**ceil(log2(p))
    m = alpha + n/p*beta
    g = n/p*gamma
    Messages, busiest rank: p - 1
    Bytes, busiest rank: n*(p - 1)/p
    Time: max((p - 1)*(m + g), (N - 1)*m + (2*p - N - 1)*g)
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

    Where ports take one message after the other, each takes the first that both ends are free for. Who meets whom
    in which turn is a table whose entries are the least that are in neither their row nor their column so far, as
    that of i xor j is, and as many turns pass as if p were a power of two.

    Messages, busiest rank: p - 1
    Bytes, busiest rank: n*(p - 1)/p
    Time: (2**ceil(log2(p)) - 1)*(alpha + n/p*beta)
    """
    size, rank = comm.size, comm.rank
    under_way = []
    for distance in range(1, size):
        to, source = (rank + distance) % size, (rank - distance) % size
        under_way.append(comm.start(comm.exchange(chunks[rank], to, chunks[source], source), shared_tags=True))
    for exchange in under_way:
        await exchange


async def all_to_all(comm: Comm, chunks: Sequence[Array]) -> None:
    """Rank i gets every rank's chunk i; the chunks are equally long. All messages are under way at once.

    Messages, busiest rank: p - 1
    Bytes, busiest rank: n*(p - 1)/p
    Time: (2**ceil(log2(p)) - 1)*(alpha + n/p*beta)
    """
    size, rank = comm.size, comm.rank
    if size == 1:
        return
    with comm.scratch((size - 1) * len(chunks[0]), chunks[0]) as inbox:
        under_way = []
        for distance, arriving in enumerate(partition(inbox, size - 1), 1):
            to, source = (rank + distance) % size, (rank - distance) % size
            exchange = comm.start(comm.exchange(chunks[to], to, arriving, source), shared_tags=True)
            under_way.append((exchange, chunks[source], arriving))
        for exchange, _, _ in under_way:
            await exchange
        for _, chunk, arrived in under_way:
            await comm.get(chunk, arrived, rank)
