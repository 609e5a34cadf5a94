"""Folding: run a scheme for powers of two on any p (Thakur, Rabenseifner & Gropp 2005, section 4.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.fabric.vectors import partition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hpcdl.fabric.comm import Array, Comm


_MIN_RANKS: Final = 8
"""Bytes of the longest data type that is summed."""


def segmented(buffer: Array, parts: int, segment_bytes: int) -> list[list[Array]]:
    """Return ``parts`` equal parts of a vector, each as a list of segments; all lists are equally long.

    A segment has at most ``segment_bytes``, rounded up to a whole element; each part has at least one. Raises
    ValueError if ``segment_bytes`` is less than 8.
    """
    if segment_bytes < _MIN_RANKS:
        raise ValueError(f"segment_bytes = {segment_bytes}: a segment has at least {_MIN_RANKS} bytes")
    count = max(1, -(-buffer.nbytes // (parts * segment_bytes)))
    return [partition(part, count) for part in partition(buffer, parts)]


async def send_segments(comm: Comm, segments: list[Array], dest: int, tag: int = 0) -> None:
    """Send the segments of :func:`segmented`, one after the other."""
    for segment in segments:
        await comm.send(segment, dest, tag)


async def receive_segments(comm: Comm, segments: list[Array], source: int, tag: int = 0) -> None:
    """Receive the segments that :func:`send_segments` sends."""
    for segment in segments:
        await comm.recv(segment, source, tag)


async def doubled(comm: Comm, ranks: int, buffer: Array) -> None:
    """Sum ``buffer`` over the first ``ranks`` ranks, a power of two, in place; equal bits on all of them."""
    distance = 1
    with comm.scratch(len(buffer), buffer) as inbox:
        while distance < ranks:
            partner = comm.rank ^ distance
            await comm.exchange(buffer, partner, inbox, partner)
            await comm.add(buffer, inbox)
            distance *= 2


async def folded(comm: Comm, buffer: Array, scheme: Callable[[Comm, int, Array], Awaitable[None]]) -> None:
    """Run ``scheme(comm, power, buffer)`` on the first ``power`` ranks, the largest power of two up to p.

    Each further rank r sends its vector to rank r - ``power`` and receives the sum. If p is not a power of two
    this costs two more messages of n bytes and one more addition.
    """
    power = 1 << (comm.size.bit_length() - 1)
    rank = comm.rank
    if rank >= power:
        await comm.send(buffer, rank - power)
        await comm.recv(buffer, rank - power, tag=0)
        return
    has_guest = rank + power < comm.size
    if has_guest:
        with comm.scratch(len(buffer), buffer) as inbox:
            await comm.recv(inbox, rank + power, tag=0)
            await comm.add(buffer, inbox)
    await scheme(comm, power, buffer)
    if has_guest:
        await comm.send(buffer, rank + power)
