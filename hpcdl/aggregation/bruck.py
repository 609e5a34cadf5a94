from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Final

from hpcdl.aggregation.parts.blocks import bundle, lengths
from hpcdl.aggregation.parts.messages import doubling, gather_in_rounds, gather_vectors
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import Blocks

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
    await _routed(comm, chunks, chunks, _equal)


async def alltoallv(comm: Comm, blocks: Blocks) -> None:
    """Rank i gets every rank's block i, of any length (two-phase Bruck, Fan et al. 2022). Any p.

    As :func:`all_to_all`. In each round the lengths of the blocks, 8 bytes each, go before the blocks, because the
    ranks on the way do not know them.

    Messages, busiest rank: 2*ceil(log2(p))
    """
    await _routed(comm, *blocks, lengths)


async def _equal(_comm: Comm, blocks: Sequence[Array], _to: int, _arriving: int, _source: int) -> list[int]:
    return [len(block) for block in blocks]


async def _routed(
    comm: Comm,
    outgoing: Sequence[Array],
    incoming: Sequence[Array],
    lengths_of_arriving: Callable[[Comm, Sequence[Array], int, int, int], Awaitable[list[int]]],
) -> None:
    size, rank = comm.size, comm.rank
    # by distance to the destination; a received block takes the place of a sent one
    pending = [outgoing[(rank + distance) % size] for distance in range(size)]
    digit = 1
    with ExitStack() as borrowed:
        while digit < size:
            moved = [distance for distance in range(size) if distance & digit]
            blocks = [pending[distance] for distance in moved]
            to, source = (rank + digit) % size, (rank - digit) % size
            counts = await lengths_of_arriving(comm, blocks, to, len(blocks), source)
            arrived = await bundle(comm, blocks, to, counts, source, borrowed)
            for distance, block in zip(moved, arrived, strict=True):
                pending[distance] = block
            digit *= 2
        # the block from distance d is in the place of the block sent to distance d
        for distance, block in enumerate(pending):
            if (room := incoming[(rank - distance) % size]) is not block:
                await comm.get(room, block, rank)


async def gather(comm: Comm, table: Array, length: int) -> list[Array]:
    """A rank with k messages receives the k ones from the distance k on, at last the missing ones. Any p.

    See :mod:`hpcdl.aggregation.parts.messages`.

    Messages, busiest rank: ceil(log2(p))
    Bytes, busiest rank: n*(p - 1)
    """
    return await gather_in_rounds(comm, table, length, doubling(comm.size))
