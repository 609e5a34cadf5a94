"""Recursive doubling over a power of two of ranks (Thakur, Rabenseifner & Gropp 2005, section 4.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
