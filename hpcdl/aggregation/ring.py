from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.fabric.comm import partition

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm


async def ring(comm: Comm, buffer: Array) -> None:
    """Ring allreduce: reduce-scatter, then allgather (Patarasuk & Yuan 2009; baidu-allreduce). Any p.

    ::

        rank 0 -> rank 1 -> rank 2 -> ... -> rank p-1 -> rank 0

    In the first p - 1 steps each chunk travels once around and grows by every rank's part; in the next p - 1
    the sums travel on. All links work all the time, so the volume does not grow with p; the latency does.

    Messages, busiest rank: 2*(p - 1)
    Bytes, busiest rank: 2*n*(p - 1)/p
    Time: 2*(p - 1)*alpha + 2*n*(p - 1)/p*beta + n*(p - 1)/p*gamma
    """
    size, rank = comm.size, comm.rank
    if size == 1:
        return
    left, right = (rank - 1) % size, (rank + 1) % size
    chunks = partition(buffer, size)
    with comm.scratch(len(chunks[0]), buffer) as inbox:
        for step in range(size - 1):
            into = chunks[(rank - step - 1) % size]
            arriving = inbox[: len(into)]
            await comm.exchange(chunks[(rank - step) % size], right, arriving, left)
            await comm.add(into, arriving)
    for step in range(size - 1):
        await comm.exchange(chunks[(rank - step + 1) % size], right, chunks[(rank - step) % size], left)
