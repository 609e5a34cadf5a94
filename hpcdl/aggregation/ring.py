from collections.abc import Sequence

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import partition


async def ring(comm: Comm, buffer: Array) -> None:
    """Ring allreduce: reduce-scatter, then allgather (Patarasuk & Yuan 2009; baidu-allreduce). Any p.

    ::

        rank 0 -> rank 1 -> rank 2 -> ... -> rank p-1 -> rank 0

    In the first p - 1 steps each chunk goes around once, and every rank adds its part; in the next p - 1 the sums
    go around. All links are always busy, so the bytes per rank do not grow with p; the latency does.

    Messages, busiest rank: 2*(p - 1)
    Bytes, busiest rank: 2*n*(p - 1)/p
    Time: 2*(p - 1)*alpha + 2*n*(p - 1)/p*beta + n*(p - 1)/p*gamma
    """
    chunks = partition(buffer, comm.size)
    await reduce_scatter(comm, chunks)
    await allgather(comm, chunks)


async def reduce_scatter(comm: Comm, chunks: Sequence[Array]) -> None:
    """Each rank r ends with the sum of chunk r; the first chunk is the longest.

    Messages, busiest rank: p - 1
    Bytes, busiest rank: n*(p - 1)/p
    Time: (p - 1)*(alpha + n/p*beta + n/p*gamma)
    """
    size, rank = comm.size, comm.rank
    left, right = (rank - 1) % size, (rank + 1) % size
    with comm.scratch(len(chunks[0]), chunks[0]) as inbox:
        # Rank r begins with chunk r - 1, whose sum goes around once; so chunk r ends here, complete.
        for step in range(1, size):
            into = chunks[(rank - step - 1) % size]
            arriving = inbox if len(into) == len(inbox) else inbox[: len(into)]
            await comm.exchange(chunks[(rank - step) % size], right, arriving, left)
            await comm.add(into, arriving)


async def allgather(comm: Comm, chunks: Sequence[Array]) -> None:
    """All ranks get each rank r's chunk r.

    Messages, busiest rank: p - 1
    Bytes, busiest rank: n*(p - 1)/p
    Time: (p - 1)*(alpha + n/p*beta)
    """
    size, rank = comm.size, comm.rank
    left, right = (rank - 1) % size, (rank + 1) % size
    for step in range(size - 1):
        await comm.exchange(chunks[(rank - step) % size], right, chunks[(rank - step - 1) % size], left)
