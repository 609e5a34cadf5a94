from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from hpcdl.aggregation.parts.folding import receive_segments, segmented, send_segments
from hpcdl.aggregation.parts.traits import Aggregation

if TYPE_CHECKING:
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
    if comm.size == 1:
        return
    with comm.scratch(len(segments[0]), buffer) as inbox:
        if comm.rank == comm.size - 1:
            await send_segments(comm, segments, comm.rank - 1)
        elif comm.rank == 0:
            await _add(comm, segments, inbox)
        else:
            await _add_and_forward(comm, segments, inbox)


async def broadcast(comm: Comm, buffer: Array, *, segment_bytes: int = 65536) -> None:
    """Send rank 0's ``buffer`` to all.

    k = max(1, ceil(n/segment_bytes))
    Messages, all ranks: k*(p - 1)
    Bytes, all ranks: n*(p - 1)
    Time, p == 1: 0
    Time: (p - 2 + k)*(alpha + n/k*beta)
    """
    [segments] = segmented(buffer, 1, segment_bytes)
    if comm.size == 1:
        return
    if comm.rank == 0:
        await send_segments(comm, segments, 1)
    elif comm.rank == comm.size - 1:
        await receive_segments(comm, segments, comm.rank - 1)
    else:
        await _forward(comm, segments)


async def _add(comm: Comm, segments: list[Array], inbox: Array) -> None:
    for segment in segments:
        await comm.recv(inbox[: len(segment)], 1, tag=0)
        await comm.add(segment, inbox[: len(segment)])


async def _add_and_forward(comm: Comm, segments: list[Array], inbox: Array) -> None:
    left, right = comm.rank - 1, comm.rank + 1
    await comm.recv(inbox, right, tag=0)
    await comm.add(segments[0], inbox)
    for added, segment in pairwise(segments):
        await comm.exchange(added, left, inbox[: len(segment)], right)
        await comm.add(segment, inbox[: len(segment)])
    await comm.send(segments[-1], left)


async def _forward(comm: Comm, segments: list[Array]) -> None:
    left, right = comm.rank - 1, comm.rank + 1
    await comm.recv(segments[0], left, tag=0)
    for received, segment in pairwise(segments):
        await comm.exchange(received, right, segment, left)
    await comm.send(segments[-1], right)
