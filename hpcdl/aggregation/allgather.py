from typing import Final

from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm

TRAITS: Final = Aggregation(autotuned=False, gathers=True)


async def allgather(comm: Comm, buffer: Array) -> None:
    """Ring allgather of all vectors; then every rank sums them in rank order. Any p.

    ::

        rank 0 -> rank 1 -> ... -> rank p-1 -> rank 0      each vector travels once around, unchanged

    For vectors that cannot be summed on their way, such as sparse or quantised gradients (Lin et al. 2018). It
    sends fewer bytes than a dense ring if the compressed vector is shorter than 2/p of the dense one. Memory:
    (p - 1)*n bytes on every rank.

    Messages, busiest rank: p - 1
    Bytes, busiest rank: n*(p - 1)
    Time: (p - 1)*(alpha + n*beta) + (p - 1)*n*gamma
    """
    size, rank, length = comm.size, comm.rank, len(buffer)
    left, right = (rank - 1) % size, (rank + 1) % size
    with comm.scratch((size - 1) * length, buffer) as others:
        inboxes = [others[i * length : (i + 1) * length] for i in range(size - 1)]
        sent = buffer
        for inbox in inboxes:
            await comm.exchange(sent, right, inbox, left)
            sent = inbox
        # inboxes hold the vectors of the ranks rank - 1, rank - 2, ..., rank + 1
        before, after = inboxes[:rank][::-1], inboxes[rank:][::-1]
        for vector in before[1:]:
            await comm.add(before[0], vector)
        for vector in before[:1] + after:
            await comm.add(buffer, vector)


async def gather(comm: Comm, table: Array, length: int) -> list[Array]:
    """Each message travels once around the ring: see :mod:`hpcdl.aggregation.parts.messages`. Any p.

    Messages, busiest rank: p - 1
    Bytes, busiest rank: n*(p - 1)
    """
    size, rank = comm.size, comm.rank
    left, right = (rank - 1) % size, (rank + 1) % size
    bound = len(table) // size
    sent, end = table[:length], length
    known = [sent]
    for _ in range(size - 1):
        status = await comm.exchange(sent, right, table[end : end + bound], left)
        sent = table[end : end + status.count]
        known.append(sent)
        end += status.count
    # of the ranks rank, rank - 1, ..., 0, p - 1, ..., rank + 1
    return known[rank::-1] + known[:rank:-1]
