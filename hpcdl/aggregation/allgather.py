from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm


async def allgather(comm: Comm, buffer: Array) -> None:
    """Every rank gets every rank's vector and adds them up itself, in the order of the ranks. Any p.

    ::

        rank 0 -> rank 1 -> ... -> rank p-1 -> rank 0      each vector travels once around, unchanged

    For what cannot be summed on the wire, such as sparse or quantised gradients (Lin et al. 2018): the volume
    grows with p, and pays off where a vector is less than 2/p of what a ring would sum. Takes (p - 1)*n bytes of
    memory on every rank.

    Messages, busiest rank: p - 1
    Bytes, busiest rank: n*(p - 1)
    Time: (p - 1)*(alpha + n*beta) + (p - 1)*n*gamma
    """
    size, rank, length = comm.size, comm.rank, len(buffer)
    left, right = (rank - 1) % size, (rank + 1) % size
    with comm.scratch((size - 1) * length, buffer) as others:
        inboxes = [others[i * length : (i + 1) * length] for i in range(size - 1)]
        travelling = buffer
        for inbox in inboxes:
            await comm.exchange(travelling, right, inbox, left)
            travelling = inbox
        # the first came from the left neighbour, the last from the right one
        before, after = inboxes[:rank][::-1], inboxes[rank:][::-1]
        for vector in before[1:]:
            await comm.add(before[0], vector)
        for vector in before[:1] + after:
            await comm.add(buffer, vector)
