"""Exchanges of blocks of any lengths between two ranks, of which all-to-alls are made."""

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import Program
from hpcdl.fabric.vectors import Parts, blocks_of


def swap(comm: Comm, outgoing: Array, to: int, incoming: Array, source: int) -> Program[object] | None:
    """Exchange two blocks. An empty one is not sent, because both ranks know its length; None for two of them."""
    if len(outgoing) and len(incoming):
        return comm.exchange(outgoing, to, incoming, source)
    if len(outgoing):
        return comm.send(outgoing, to)
    return comm.recv(incoming, source, tag=0) if len(incoming) else None


async def lengths(comm: Comm, blocks: Sequence[Array], to: int, arriving: int, source: int) -> list[int]:
    """Send the lengths of ``blocks`` to one rank; return those of the ``arriving`` blocks of another one."""
    counts = np.empty(arriving, np.int64)
    await comm.exchange(np.array([len(block) for block in blocks], np.int64), to, counts, source)
    return counts.tolist()


async def packed(comm: Comm, blocks: Sequence[Array], out: Array) -> None:
    """Copy ``blocks``, one behind the other, into ``out``."""
    for block, place in zip(blocks, blocks_of(out, map(len, blocks)), strict=True):
        await comm.get(place, block, comm.rank)


async def bundle(
    comm: Comm, blocks: Sequence[Array], to: int, counts: Sequence[int], source: int, borrowed: ExitStack
) -> Parts:
    """Send ``blocks`` in one message; return those of the lengths ``counts`` that arrive, in borrowed memory."""
    into = borrowed.enter_context(comm.scratch(sum(counts), blocks[0]))
    with comm.scratch(sum(map(len, blocks)), blocks[0]) as out:
        await packed(comm, blocks, out)
        await comm.exchange(out, to, into, source)
    return blocks_of(into, counts)
