from typing import Final

from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import Window, partition

TRAITS: Final = Aggregation(memory="host", one_host=True)


async def two_shot(comm: Comm, buffer: Array) -> None:
    """Two-shot allreduce in shared memory: sum a chunk, then copy the other ranks' sums. Any p, one host.

    ::

        rank 0   [a][b][c]      First shot: rank 0 adds the a of all ranks to its own, rank 1 the b, ... Fence.
        rank 1   [a][b][c]      Second shot: each rank copies the other sums. Only the tokens of three fences are
        rank 2   [a][b][c]      sent as messages.

    GPU libraries use the name for memory of other GPUs; on CPUs it is the scheme of Li, Hoefler & Snir 2013
    (NUMA-aware shared-memory collective communication for MPI). On several hosts use it as a part of
    ``hierarchical``. Vectors outside shared memory are copied in and out.

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
