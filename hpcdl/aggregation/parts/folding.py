"""Folding: run a scheme for powers of two on any p (Thakur, Rabenseifner & Gropp 2005, section 4.5)."""

from collections.abc import Awaitable, Callable

from hpcdl.fabric.comm import Array, Comm


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
