from typing import Final

from hpcdl.aggregation.parts.patterns import Place, segmented, send_down, sum_up
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm

TRAITS: Final = Aggregation(autotuned=False)


async def chain(comm: Comm, buffer: Array, *, segment_bytes: int = 65536) -> None:
    """Pipelined chain: sum segments on their way to rank 0, then send them back (Open MPI's ``pipeline``). Any p.

    ::

        0 <-- 1 <-- 2 <-- 3      A rank sends one segment while it receives the next. Long vectors cost as
          s1    s2    s3         little as in a ring. The pipeline fills and drains twice.
        0 --> 1 --> 2 --> 3

    k = max(1, ceil(n/segment_bytes))
    m = alpha + n/k*beta
    g = n/k*gamma
    Messages, busiest rank: 2*k if p > 2 else k*(p - 1)
    Messages, all ranks: 2*k*(p - 1)
    Bytes, busiest rank: 2*n if p > 2 else n*(p - 1)
    Bytes, all ranks: 2*n*(p - 1)
    Time, p == 1: 0
    Time: (p - 2 + k)*(m + g) + (p - 2 + k)*m

    Raises ValueError if ``segment_bytes`` is less than 8.
    """
    await reduce(comm, buffer, segment_bytes=segment_bytes)
    await broadcast(comm, buffer, segment_bytes=segment_bytes)


async def reduce(comm: Comm, buffer: Array, *, segment_bytes: int = 65536) -> None:
    """Sum at rank 0; on other ranks ``buffer`` ends with a partial sum.

    k = max(1, ceil(n/segment_bytes))
    Messages, all ranks: k*(p - 1)
    Bytes, all ranks: n*(p - 1)
    Time, p == 1: 0
    Time: (p - 2 + k)*(alpha + n/k*(beta + gamma))
    """
    [segments] = segmented(buffer, 1, segment_bytes)
    await sum_up(comm, segments, _place(comm))


async def broadcast(comm: Comm, buffer: Array, *, segment_bytes: int = 65536) -> None:
    """Send rank 0's ``buffer`` to all.

    k = max(1, ceil(n/segment_bytes))
    Messages, all ranks: k*(p - 1)
    Bytes, all ranks: n*(p - 1)
    Time, p == 1: 0
    Time: (p - 2 + k)*(alpha + n/k*beta)
    """
    [segments] = segmented(buffer, 1, segment_bytes)
    await send_down(comm, segments, _place(comm))


def _place(comm: Comm) -> Place:
    rank = comm.rank
    return Place([rank - 1] if rank else [], [rank + 1] if rank + 1 < comm.size else [])
