from collections.abc import Callable
from typing import NamedTuple

from hpcdl.aggregation.parts.folding import folded
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import Parts


async def halving_doubling(comm: Comm, buffer: Array) -> None:
    """Recursive halving, then recursive doubling (Rabenseifner 2004). Any p.

    ::

        0 . . . . . . . 7     Partners at the distance p/2 exchange halves of the vector, then at p/4 quarters, ...
        [ half  ][ half  ]    Each rank ends with the sum of its p-th part. The doubling makes the same steps in
        [ q ][ q ]            reverse and gathers the parts.

    A ring's bandwidth with a tree's latency. Ranks above the largest power of two are folded: see
    parts/folding.py.

    Messages, busiest rank: 2*floor(log2(p)) + (p & (p - 1) > 0)
    Bytes, busiest rank: 2*n*(2**floor(log2(p)) - 1)/2**floor(log2(p)) + n*(p & (p - 1) > 0)
    Time, p a power of two: 2*log2(p)*alpha + 2*n*(p - 1)/p*beta + n*(p - 1)/p*gamma
    """
    await folded(comm, buffer, _halve_and_double)


async def reduce_scatter(comm: Comm, chunks: Parts) -> None:
    """Recursive halving: each rank r ends with the sum of chunk r. Any p.

    ::

        0 <- 1   2   3   4     A rank above the largest power of two is the guest of a neighbour, its host, which
        [0 1]   [2] [3] [4]    sums two chunks and sends one of the sums to its guest.

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
    await _halve(comm, whole, _core(rank, guests), _parts(chunks, power, guests))
    if rank < 2 * guests:
        await comm.send(chunks[rank + 1], rank + 1)


async def allgather(comm: Comm, chunks: Parts) -> None:
    """Recursive doubling: all ranks get each rank r's chunk r. Any p.

    A guest sends its chunk to its host and receives the whole vector; see :func:`reduce_scatter`.

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
    await _double(comm, whole, _core(rank, guests), _parts(chunks, power, guests))
    if rank < 2 * guests:
        await comm.send(whole, rank + 1)


def _powers(size: int) -> tuple[int, int]:
    """Return the largest power of two up to ``size``, and the number of guests, the remaining ranks."""
    power = 1 << size.bit_length() - 1
    return power, size - power


def _core(rank: int, guests: int) -> int:
    """Return the number of a rank among the ranks without the guests, which are 1, 3, ..., 2 ``guests`` - 1."""
    return rank // 2 if rank < 2 * guests else rank - guests


def _host(core: int, guests: int) -> int:
    """Return the rank whose :func:`_core` number is ``core``."""
    return 2 * core if core < guests else core + guests


class _Division(NamedTuple):
    """A vector that is divided among a power of two of numbers."""

    power: int
    edge: Callable[[int], int]
    """The begin of a number's part; at ``power`` the end of the vector."""
    rank: Callable[[int], int]
    """The rank of a number."""

    def block(self, whole: Array, me: int, distance: int) -> Array:
        """Return the block of ``distance`` parts that contains the part of number ``me``."""
        first = me & -distance
        return whole[self.edge(first) : self.edge(first + distance)]


def _parts(chunks: Parts, power: int, guests: int) -> _Division:
    """Return the division by the chunks of the ranks without the guests."""
    begins = chunks.begins
    return _Division(
        power,
        lambda core: begins[_host(core, guests)] if core < power else begins[-1],
        lambda core: _host(core, guests),
    )


async def _halve_and_double(comm: Comm, ranks: int, buffer: Array) -> None:
    division = _Division(ranks, lambda core: len(buffer) * core // ranks, int)
    await _halve(comm, buffer, comm.rank, division)
    await _double(comm, buffer, comm.rank, division)


async def _halve(comm: Comm, whole: Array, me: int, division: _Division) -> None:
    """Recursive halving: number ``me`` ends with the sum of its part."""
    distance = division.power // 2
    middle = division.edge(distance)
    with comm.scratch(max(middle, len(whole) - middle), whole) as inbox:
        while distance:
            mine, theirs = division.block(whole, me, distance), division.block(whole, me ^ distance, distance)
            partner, arriving = division.rank(me ^ distance), inbox[: len(mine)]
            await comm.exchange(theirs, partner, arriving, partner)
            await comm.add(mine, arriving)
            distance //= 2


async def _double(comm: Comm, whole: Array, me: int, division: _Division) -> None:
    """Recursive doubling: gather the parts on every number."""
    distance = 1
    while distance < division.power:
        mine, theirs = division.block(whole, me, distance), division.block(whole, me ^ distance, distance)
        partner = division.rank(me ^ distance)
        await comm.exchange(mine, partner, theirs, partner)
        distance *= 2
