from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.aggregation.segments import segmented
from hpcdl.fabric.comm import partition

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm


async def segmented_ring(comm: Comm, buffer: Array, *, segment_bytes: int = 65536) -> None:
    """Ring whose reduce-scatter goes in segments: one is added while the next one travels. Any p.

    ::

        links   a1  a2  a3  b1  b2  b3  c1 ...      k = 3 segments of each chunk a, b, c, ...; what is added to
        adders      a1  a2  a3  b1  b2  b3 ...      b1 in a step of the ring travels on k segments later.

    Open MPI's ``ring_segmented`` (tuned allreduce 5); that starts anew in each of its k phases, this goes on. The
    sums then travel around in whole chunks, as a ring's.

    k = max(1, ceil(n/(p*segment_bytes)))
    m = alpha + n/(p*k)*beta
    g = n/(p*k)*gamma
    Messages, busiest rank: (k + 1)*(p - 1)
    Bytes, busiest rank: 2*n*(p - 1)/p
    Time, k == 1: (p - 1)*(m + g) + (p - 1)*(alpha + n/p*beta)
    Time, p > 1: m + ((p - 1)*k - 1)*max(m, g) + g + (p - 1)*(alpha + n/p*beta)

    Raises ValueError if ``segment_bytes`` is less than 8.
    """
    size, rank = comm.size, comm.rank
    whole, chunks = partition(buffer, size), segmented(buffer, size, segment_bytes)
    if size == 1:
        return
    left, right = (rank - 1) % size, (rank + 1) % size
    # what this rank sends, in order; what arrives is added to what it sends one chunk later
    around = [segment for step in range(size) for segment in chunks[(rank - step) % size]]
    moves = list(zip(around, around[len(chunks[0]) :], strict=False))
    await (_overlap if len(chunks[0]) > 1 else _alternate)(comm, moves, left, right)
    for step in range(size - 1):
        await comm.exchange(whole[(rank - step + 1) % size], right, whole[(rank - step) % size], left)


async def _alternate(comm: Comm, moves: list[tuple[Array, Array]], left: int, right: int) -> None:
    """Chunks of one segment, each of which must be added before it travels on: nothing overlaps."""
    with comm.scratch(max(len(into) for _, into in moves), moves[0][0]) as inbox:
        for outgoing, into in moves:
            arriving = inbox[: len(into)]
            await comm.exchange(outgoing, right, arriving, left)
            await comm.add(into, arriving)


async def _overlap(comm: Comm, moves: list[tuple[Array, Array]], left: int, right: int) -> None:
    """Add each segment while the next one travels into the other inbox."""
    outgoing, into = moves[0]
    longest = max(len(into) for _, into in moves)
    with comm.scratch(longest, into) as first, comm.scratch(longest, into) as second:
        inbox, other = first, second
        await comm.exchange(outgoing, right, inbox[: len(into)], left)
        for outgoing, following in moves[1:]:
            arriving = other[: len(following)]
            travelling = comm.start(comm.exchange(outgoing, right, arriving, left), shared_tags=True)
            await comm.add(into, inbox[: len(into)])
            await travelling
            into, inbox, other = following, other, inbox
        await comm.add(into, inbox[: len(into)])
