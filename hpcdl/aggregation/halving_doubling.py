from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from hpcdl.aggregation.folding import folded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcdl.fabric.comm import Array, Comm, Parts


async def halving_doubling(comm: Comm, buffer: Array) -> None:
    """Recursive halving, then recursive doubling (Rabenseifner 2004). Any p.

    ::

        0 . . . . . . . 7     first partners are p/2 apart and swap halves of the vector, then p/4 apart and
        [ half  ][ half  ]    quarters, ...: each ends with the sum of its p-th part; the way back undoes
        [ q ][ q ]            the steps in reverse, gathering the parts.

    A ring's bandwidth with a tree's latency. Ranks beyond a power of two fold into it.

    Messages, busiest rank: 2*floor(log2(p)) + (p & (p - 1) > 0)
    Bytes, busiest rank: 2*n*(2**floor(log2(p)) - 1)/2**floor(log2(p)) + n*(p & (p - 1) > 0)
    Time, p a power of two: 2*log2(p)*alpha + 2*n*(p - 1)/p*beta + n*(p - 1)/p*gamma
    """
    await folded(comm, buffer, _halve_and_double)


async def reduce_scatter(comm: Comm, chunks: Parts) -> None:
    """Recursive halving: each rank r ends with the sum of chunk r. Any p.

    ::

        0 <- 1   2   3   4     Ranks beyond a power of two fold into their neighbours, which halve with two chunks
        [0 1]   [2] [3] [4]    each, and hand them one of the sums.

    Messages, busiest rank: floor(log2(p)) + (p & (p - 1) > 0)
    Time, p a power of two: log2(p)*alpha + n*(p - 1)/p*(beta + gamma)
    Bytes, p a power of two: n*(p - 1)/p
    """
    rank, whole = comm.rank, chunks.whole
    power, guests = _powers(comm.size)
    if rank < 2 * guests and rank % 2:
        await comm.send(whole, rank - 1)
        await comm.recv(chunks[rank], rank - 1, tag=0)
        return
    if rank < 2 * guests:
        with comm.scratch(len(whole), whole) as inbox:
            await comm.recv(inbox, rank + 1, tag=0)
            await comm.add(whole, inbox)
    await _halve(comm, whole, _core(rank, guests), _edges(chunks, power, guests), lambda core: _host(core, guests))
    if rank < 2 * guests:
        await comm.send(chunks[rank + 1], rank + 1)


async def allgather(comm: Comm, chunks: Parts) -> None:
    """Recursive doubling: all ranks get each rank r's chunk r. Any p.

    Ranks beyond a power of two hand their neighbours their chunk, and wait for the whole.

    Messages, busiest rank: floor(log2(p)) + (p & (p - 1) > 0)
    Time, p a power of two: log2(p)*alpha + n*(p - 1)/p*beta
    Bytes, p a power of two: n*(p - 1)/p
    """
    rank, whole = comm.rank, chunks.whole
    power, guests = _powers(comm.size)
    if rank < 2 * guests and rank % 2:
        await comm.send(chunks[rank], rank - 1)
        await comm.recv(whole, rank - 1, tag=0)
        return
    if rank < 2 * guests:
        await comm.recv(chunks[rank + 1], rank + 1, tag=0)
    await _double(
        comm, whole, _core(rank, guests), _edges(chunks, power, guests), lambda core: _host(core, guests)
    )
    if rank < 2 * guests:
        await comm.send(whole, rank + 1)


def _powers(size: int) -> tuple[int, int]:
    """The largest power of two up to ``size``, and what is left."""
    power = 1 << size.bit_length() - 1
    return power, size - power


def _core(rank: int, guests: int) -> int:
    """The number of a rank among those that halve: 0, 1, 2 are ranks 0, 2, 4 while those have guests."""
    return rank // 2 if rank < 2 * guests else rank - guests


def _host(core: int, guests: int) -> int:
    """The rank of a number among those that halve."""
    return 2 * core if core < guests else core + guests


def _edges(chunks: Sequence[Array], power: int, guests: int) -> list[int]:
    """Where the chunks of those that halve begin, and the vector ends."""
    begins = list(accumulate(map(len, chunks), initial=0))
    return [*(begins[_host(core, guests)] for core in range(power)), begins[-1]]


async def _halve_and_double(comm: Comm, ranks: int, buffer: Array) -> None:
    edges = [len(buffer) * core // ranks for core in range(ranks + 1)]
    await _halve(comm, buffer, comm.rank, edges, int)
    await _double(comm, buffer, comm.rank, edges, int)


async def _halve(comm: Comm, whole: Array, me: int, edges: Sequence[int], rank_of: Callable[[int], int]) -> None:
    """``me`` ends with the sum of what lies between its edge and the next."""
    distance = (len(edges) - 1) // 2
    with comm.scratch(max(edges[distance], edges[-1] - edges[distance]), whole) as inbox:
        while distance:
            mine, theirs = (_held(whole, one, edges, distance) for one in (me, me ^ distance))
            partner = rank_of(me ^ distance)
            await comm.exchange(theirs, partner, inbox[: len(mine)], partner)
            await comm.add(mine, inbox[: len(mine)])
            distance //= 2


async def _double(comm: Comm, whole: Array, me: int, edges: Sequence[int], rank_of: Callable[[int], int]) -> None:
    """The way back: everybody gets what everybody has between its edge and the next."""
    distance = 1
    while distance < len(edges) - 1:
        mine, theirs = (_held(whole, one, edges, distance) for one in (me, me ^ distance))
        partner = rank_of(me ^ distance)
        await comm.exchange(mine, partner, theirs, partner)
        distance *= 2


def _held(whole: Array, me: int, edges: Sequence[int], distance: int) -> Array:
    """What ``me`` works on once partners are less than ``distance`` apart."""
    first = me & -distance
    return whole[edges[first] : edges[first + distance]]
