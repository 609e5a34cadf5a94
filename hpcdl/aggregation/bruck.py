from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from hpcdl.aggregation.parts.messages import doubling, gather_in_rounds, gather_vectors
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm

TRAITS: Final = Aggregation(gathers=True)


async def bruck(comm: Comm, buffer: Array) -> None:
    """Bruck's allgather of all vectors; then every rank sums them in rank order (Bruck et al. 1997). Any p.

    ::

        rank 0   0 | 1 | 2 3 | 4      A rank with k vectors receives the k vectors of the rank at the distance k;
        rank 1   1 | 2 | 3 4 | 0      in the last round only the missing ones.

    The smallest possible number of rounds for any p: for the shortest vectors. Memory: p*n bytes on every rank.

    Messages, busiest rank: ceil(log2(p))
    Bytes, busiest rank: n*(p - 1)
    Time: ceil(log2(p))*alpha + (p - 1)*n*(beta + gamma)
    """
    size, rank, length = comm.size, comm.rank, len(buffer)
    if size == 1:
        return
    with comm.scratch(size * length, buffer) as table:
        await comm.get(table[:length], buffer, rank)
        edges = [place * length for place in range(size + 1)]
        await gather_vectors(comm, table, edges, doubling(size))
        rows = [table[begin:end] for begin, end in pairwise(edges)]
        first, *others = (rows[(of - rank) % size] for of in range(size))
        for row in others:
            await comm.add(first, row)
        await comm.get(buffer, first, rank)


async def all_to_all(comm: Comm, chunks: Sequence[Array]) -> None:
    """Rank i gets every rank's chunk i; the chunks are equally long (index algorithm of Bruck et al. 1997). Any p.

    In the rounds 1, 2, 4, ... a rank sends all chunks whose distance to their destination has this binary digit,
    in one message, to the rank at this distance. There are fewer messages than chunks; a chunk is sent once per
    digit 1.

    Messages, busiest rank: ceil(log2(p))
    Bytes, busiest rank: n/p*sum(i.bit_count() for i in range(p))
    Time: ceil(log2(p))*alpha + n/p*sum(i.bit_count() for i in range(p))*beta
    """
    size, rank, length = comm.size, comm.rank, len(chunks[0])
    # by distance to the destination; a received chunk takes the place of a sent one
    pending = [chunks[(rank + distance) % size] for distance in range(size)]
    digit = 1
    with comm.scratch(size // 2 * length, chunks[0]) as out, comm.scratch(size // 2 * length, chunks[0]) as into:
        while digit < size:
            moved = [chunk for distance, chunk in enumerate(pending) if distance & digit]
            for place, chunk in enumerate(moved):
                await comm.get(out[place * length : (place + 1) * length], chunk, rank)
            end = len(moved) * length
            await comm.exchange(out[:end], (rank + digit) % size, into[:end], (rank - digit) % size)
            for place, chunk in enumerate(moved):
                await comm.get(chunk, into[place * length : (place + 1) * length], rank)
            digit *= 2
    # the chunk from distance d is in the place of the chunk sent to distance d: exchange places d and p - d
    with comm.scratch(length, chunks[0]) as spare:
        for distance in range(1, (size + 1) // 2):
            mine, other = pending[distance], pending[size - distance]
            await comm.get(spare, mine, rank)
            await comm.get(mine, other, rank)
            await comm.get(other, spare, rank)


async def gather(comm: Comm, table: Array, length: int) -> list[Array]:
    """A rank with k messages receives the k ones from the distance k on, at last the missing ones. Any p.

    See :mod:`hpcdl.aggregation.parts.messages`.

    Messages, busiest rank: ceil(log2(p))
    Bytes, busiest rank: n*(p - 1)
    """
    return await gather_in_rounds(comm, table, length, doubling(comm.size))
