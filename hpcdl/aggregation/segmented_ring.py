from hpcdl.aggregation.parts.patterns import segmented
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import partition


async def segmented_ring(comm: Comm, buffer: Array, *, segment_bytes: int = 65536) -> None:
    """Ring with a segmented reduce-scatter: one segment is added while the next one is under way. Any p.

    ::

        links   a1  a2  a3  b1  b2  b3  c1 ...      k = 3 segments of each chunk a, b, c, ... The sum that is
        adders      a1  a2  a3  b1  b2  b3 ...      added at b1 is sent on k segments later.

    As Open MPI's ``ring_segmented`` (tuned allreduce 5), but without its pause between phases. The allgather sends
    whole chunks, as a ring's.

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
    # segments in sending order; each received segment is added to the one that is sent one chunk later
    segments = [segment for step in range(size) for segment in chunks[(rank - step) % size]]
    moves = list(zip(segments, segments[len(chunks[0]) :], strict=False))
    await (_overlap if len(chunks[0]) > 1 else _alternate)(comm, moves, left, right)
    for step in range(size - 1):
        await comm.exchange(whole[(rank - step + 1) % size], right, whole[(rank - step) % size], left)


async def _alternate(comm: Comm, moves: list[tuple[Array, Array]], left: int, right: int) -> None:
    """Send and add in turn: with one segment per chunk each must be added before it is sent on."""
    with comm.scratch(max(len(into) for _, into in moves), moves[0][0]) as inbox:
        for outgoing, into in moves:
            arriving = inbox[: len(into)]
            await comm.exchange(outgoing, right, arriving, left)
            await comm.add(into, arriving)


async def _overlap(comm: Comm, moves: list[tuple[Array, Array]], left: int, right: int) -> None:
    """Add each segment while the next one arrives in the other inbox."""
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
