from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.aggregation.folding import folded

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm


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


async def _halve_and_double(comm: Comm, ranks: int, buffer: Array) -> None:
    steps = []
    mine, distance = buffer, ranks // 2
    with comm.scratch((len(buffer) + 1) // 2, buffer) as inbox:
        while distance:
            partner = comm.rank ^ distance
            low, high = mine[: len(mine) // 2], mine[len(mine) // 2 :]
            mine, theirs = (high, low) if comm.rank & distance else (low, high)
            await comm.exchange(theirs, partner, inbox[: len(mine)], partner)
            await comm.add(mine, inbox[: len(mine)])
            steps.append((partner, mine, theirs))
            distance //= 2
    for partner, kept, given in reversed(steps):
        await comm.exchange(kept, partner, given, partner)
