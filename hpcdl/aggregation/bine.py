from typing import Final

from hpcdl.aggregation.parts import patterns
from hpcdl.aggregation.parts.patterns import Division, Fold, Place, is_latency, swings
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import Parts

TRAITS: Final = Aggregation(autotuned=False)  # on one switch as fast as `halving_doubling` or `butterfly`


async def bine(comm: Comm, buffer: Array, *, optimal: str = "bandwidth") -> None:
    """Bine butterfly: distances of 1, 1, 3, 5, 11, ... in place of powers of two (De Sensi et al. 2025).

    ::

        step 0    1       A binomial tree of negabinary numbers (base -2): each step joins a tree with its mirror
        step 1   -1       image. The distances grow like two thirds of the powers of two, so that up to a third
        step 2    3       fewer messages leave a group of neighbours, such as a dragonfly's. Half of the vector
        step 3   -5       goes to the nearest rank, a quarter to the next, ...

    ``optimal``: "bandwidth", a reduce-scatter and an allgather, for long vectors; "latency", exchanges of whole
    vectors, for short ones. On a ring these are the steps of ``swing``. Ranks beyond a power of two are folded:
    see parts/patterns.py.

    L = floor(log2(p))
    r = (p & (p - 1) > 0)
    Messages, busiest rank: (L if optimal == "latency" else 2*L) + r
    Bytes, busiest rank: n*((L if optimal == "latency" else 2 - 2/2**L) + r)
    Time, optimal == "latency" and p & (p - 1) == 0: L*(alpha + n*beta + n*gamma)
    Time, optimal == "bandwidth" and p & (p - 1) == 0: 2*L*alpha + n*(p - 1)/p*(2*beta + gamma)

    Raises ValueError for another word.
    """
    await patterns.allreduce(swings, optimal, comm, buffer)


async def reduce_scatter(comm: Comm, chunks: Parts) -> None:
    """Each rank r ends with the sum of chunk r, which another rank sends to it in the last message. Any p.

    Messages, busiest rank: floor(log2(p)) + (p > 2) + (p - 2**floor(log2(p)) > 1)
    Bytes, p a power of two: n*(p - 1)/p + n/p*(p > 2)
    Time, p a power of two: log2(p)*alpha + n*(p - 1)/p*(beta + gamma) + (alpha + n/p*beta)*(p > 2)
    """
    await patterns.reduce_scatter(swings, comm, chunks)


async def allgather(comm: Comm, chunks: Parts) -> None:
    """All ranks get each rank r's chunk r: the messages of a reduce-scatter in reverse. Any p.

    Messages, busiest rank: floor(log2(p)) + (p > 2) + (p - 2**floor(log2(p)) > 1)
    Bytes, p a power of two: n*(p - 1)/p + n/p*(p > 2)
    Time, p a power of two: log2(p)*alpha + n*(p - 1)/p*beta + (alpha + n/p*beta)*(p > 2)
    """
    await patterns.allgather(swings, comm, chunks)


async def reduce(comm: Comm, buffer: Array, *, optimal: str = "bandwidth") -> None:
    """Sum at rank 0 by a reduce-scatter and a gather, or up the distance-halving tree. Any p.

    On other ranks ``buffer`` ends with partial sums.

    L = floor(log2(p))
    Messages, busiest rank: min(p - 1, 1) if optimal == "latency" else L + (p > 1)
    Bytes, p a power of two: n*min(p - 1, 1) if optimal == "latency" else n*(p - 1)/p + n/2*(p > 1)
    Time, optimal == "latency" and p & (p - 1) == 0: L*(alpha + n*beta + n*gamma)
    Time, optimal == "bandwidth" and p & (p - 1) == 0: 2*L*alpha + n*(p - 1)/p*(2*beta + gamma)

    Raises ValueError for another word than "bandwidth" and "latency".
    """
    fold, rank = Fold.of(comm.size), comm.rank
    if is_latency(optimal):
        place = _tree(fold, rank)
        await patterns.sum_up(comm, [buffer], place._replace(children=place.children[::-1]))
        return
    if fold.is_guest(rank):
        await comm.send(buffer, rank - 1)
        return
    await patterns.add_guest(comm, fold, buffer)
    division = Division(comm, fold, swings(fold.power), buffer)
    await patterns.halve(comm, division)
    for step in reversed(range(division.steps)):
        partner, mine, theirs = division.exchange(step)
        if division.is_root_of(step):
            await comm.recv(theirs, partner)
        elif division.is_root_of(step + 1):
            await comm.send(mine, partner)


async def broadcast(comm: Comm, buffer: Array, *, optimal: str = "bandwidth") -> None:
    """Send rank 0's ``buffer`` to all by a scatter and an allgather, or down the distance-halving tree. Any p.

    L = floor(log2(p))
    r = (p & (p - 1) > 0)
    Messages, busiest rank: (L if optimal == "latency" else 2*L) + r
    Bytes, busiest rank: n*((L if optimal == "latency" else 2 - 2/2**L) + r)
    Time, optimal == "latency" and p & (p - 1) == 0: L*(alpha + n*beta)
    Time, optimal == "bandwidth" and p & (p - 1) == 0: 2*L*alpha + 2*n*(p - 1)/p*beta

    Raises ValueError for another word than "bandwidth" and "latency".
    """
    fold, rank = Fold.of(comm.size), comm.rank
    if is_latency(optimal):
        await patterns.send_down(comm, [buffer], _tree(fold, rank))
        return
    if fold.is_guest(rank):
        await comm.recv(buffer, rank - 1)
        return
    division = Division(comm, fold, swings(fold.power), buffer)
    for step in range(division.steps):
        partner, mine, theirs = division.exchange(step)
        if division.is_root_of(step):
            await comm.send(theirs, partner)
        elif division.is_root_of(step + 1):
            await comm.recv(mine, partner)
    await patterns.double(comm, division)
    if fold.is_host(rank):
        await comm.send(buffer, rank + 1)


def _tree(fold: Fold, rank: int) -> Place:
    """Return a rank's place in the distance-halving tree; the child of the first step is first, a guest last."""
    if fold.is_guest(rank):
        return Place([rank - 1], [])
    place = swings(fold.power).tree[fold.number(rank)].renamed(fold.rank)
    return place._replace(children=[*place.children, rank + 1]) if fold.is_host(rank) else place
