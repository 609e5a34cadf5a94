from typing import Final

from hpcdl.aggregation.parts.messages import transfer
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import partition
from hpcdl.registry import Settings


async def sharded_parameter_server(comm: Comm, buffer: Array, *, servers: int | None = None) -> None:
    """Several servers, each of which sums one shard of the vector (DistBelief, section 4.1). Any p.

    The first ``servers`` ranks (default: all) are servers and workers. In round k every rank sends to the server
    at the distance k, so that no server receives from two workers at once. With p servers this is a pairwise
    reduce-scatter and allgather, with a ring's bandwidth.

    Messages, busiest rank: 2*(p - 1)
    Bytes, busiest rank: 2*n*(p - 1)/p
    Time: 2*(p - 1)*alpha + 2*n*(p - 1)/p*beta + n*(p - 1)/p*gamma

    Raises ValueError if ``servers`` is not in 1..p.
    """
    size, rank = comm.size, comm.rank
    shards = size if servers is None else servers
    if not 1 <= shards <= size:
        raise ValueError(f"servers = {servers} with {size} ranks: must be in 1..{size}")
    shard = [*partition(buffer, shards), *[buffer[:0]] * (size - shards)]
    mine = shard[rank]

    def shard_of(server: int) -> Array | None:
        return shard[server] if server < shards else None

    with comm.scratch(len(mine), buffer) as inbox:
        for distance in range(1, size):
            server, worker = (rank + distance) % size, (rank - distance) % size
            await transfer(comm, shard_of(server), server, inbox if rank < shards else None, worker)
            if rank < shards:
                await comm.add(mine, inbox)
    for distance in range(1, size):
        worker, server = (rank + distance) % size, (rank - distance) % size
        await transfer(comm, shard_of(rank), worker, shard_of(server), server)


def _servers(ranks: int, settings: Settings) -> int:
    chosen = settings.get("servers")
    return chosen if isinstance(chosen, int) else ranks


TRAITS: Final = Aggregation(autotuned=False, servers=_servers)
