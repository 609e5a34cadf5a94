from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array, Comm


async def bruck(comm: Comm, buffer: Array) -> None:
    """Bruck's allgather of all vectors, which every rank then adds up in the order of the ranks. Any p.

    ::

        rank 0   0 | 1 | 2 3 | 4      Each round doubles the vectors that a rank has, by those of the rank as many
        rank 1   1 | 2 | 3 4 | 0      places on; the last round fetches what is missing (Bruck et al. 1997).

    The fewest rounds that there can be, also where p is no power of two: for the shortest vectors. Takes p*n bytes
    of memory on every rank.

    Messages, busiest rank: ceil(log2(p))
    Bytes, busiest rank: n*(p - 1)
    Time: ceil(log2(p))*alpha + (p - 1)*n*(beta + gamma)
    """
    size, rank, length = comm.size, comm.rank, len(buffer)
    if size == 1:
        return
    with comm.scratch(size * length, buffer) as table:
        await comm.get(table[:length], buffer, rank)
        known = 1
        while known < size:
            more = min(known, size - known)
            into = table[known * length : (known + more) * length]
            await comm.exchange(table[: more * length], (rank - known) % size, into, (rank + known) % size)
            known += more
        rows = [table[place * length : (place + 1) * length] for place in range(size)]
        first, *others = (rows[(of - rank) % size] for of in range(size))
        for row in others:
            await comm.add(first, row)
        await comm.get(buffer, first, rank)


async def all_to_all(comm: Comm, chunks: Sequence[Array]) -> None:
    """Rank i gets every rank's chunk i; the chunks are equally long (Bruck et al. 1997's index). Any p.

    A chunk travels as far as the binary digits of its way say, 1, 2, 4, ... places at a time, with all others that
    go as far in that round: fewer messages than chunks, but each chunk is sent once for each digit that is 1.

    Messages, busiest rank: ceil(log2(p))
    Bytes, busiest rank: n/p*sum(i.bit_count() for i in range(p))
    Time: ceil(log2(p))*alpha + n/p*sum(i.bit_count() for i in range(p))*beta
    """
    size, rank, length = comm.size, comm.rank, len(chunks[0])
    # by how far each has to go; chunks on their way wait in the places of those that went
    going = [chunks[(rank + way) % size] for way in range(size)]
    digit = 1
    with comm.scratch(size // 2 * length, chunks[0]) as out, comm.scratch(size // 2 * length, chunks[0]) as into:
        while digit < size:
            moved = [chunk for way, chunk in enumerate(going) if way & digit]
            for place, chunk in enumerate(moved):
                await comm.get(out[place * length : (place + 1) * length], chunk, rank)
            end = len(moved) * length
            await comm.exchange(out[:end], (rank + digit) % size, into[:end], (rank - digit) % size)
            for place, chunk in enumerate(moved):
                await comm.get(chunk, into[place * length : (place + 1) * length], rank)
            digit *= 2
    # what came w places is here in the place of what went w places, and belongs where w places back are counted
    with comm.scratch(length, chunks[0]) as spare:
        for way in range(1, (size + 1) // 2):
            there, back = going[way], going[size - way]
            await comm.get(spare, there, rank)
            await comm.get(there, back, rank)
            await comm.get(back, spare, rank)
