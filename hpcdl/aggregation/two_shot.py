from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.fabric.comm import partition
from hpcdl.fabric.window import Window

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm

MEMORY: Final = "host"
ONE_HOST: Final = True


async def two_shot(comm: Comm, buffer: Array) -> None:
    """Two-shot allreduce in memory that all ranks share: add up a chunk, fetch the others'. Any p, one host.

    ::

        rank 0   [a][b][c]      First shot: rank 0 adds everybody's a to its own, where they lie, rank 1
        rank 1   [a][b][c]      everybody's b. Fence. Second shot: everybody fetches the sums that the others made.
        rank 2   [a][b][c]      Nothing is sent but three fences' tokens.

    The name is that of GPU libraries, where the memory is the other GPU's; on processors it is the scheme of Li,
    Hoefler & Snir 2013 (NUMA-aware shared-memory collective communication for MPI). Ranks on different hosts are
    refused; within hosts it serves ``hierarchical``. Vectors that ranks do not share are copied in and out.

    L = ceil(log2(p))
    Messages, busiest rank: 3*L
    Bytes, busiest rank: 48*(p - 1)
    Time, p <= 2: 3*L*alpha + 48*(p - 1)*beta + (p - 1)*(alpha + n/p*beta + n/p*gamma)
    """
    async with Window(comm, buffer) as window:
        chunks = [partition(vector, comm.size) for vector in window.vectors]
        mine = chunks[comm.rank]
        others = [(comm.rank + distance) % comm.size for distance in range(1, comm.size)]
        for other in others:
            await comm.add(mine[comm.rank], chunks[other][comm.rank])
        await window.fence()
        for other in others:
            await comm.get(mine[other], chunks[other][other], other)
