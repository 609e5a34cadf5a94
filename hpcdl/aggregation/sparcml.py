from functools import partial
from typing import Final

import numpy as np

from hpcdl.aggregation.parts import entries as sparse
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.compression.parts.protocol import Sparse
from hpcdl.fabric.comm import Array, Comm

TRAITS: Final = Aggregation(sparse=True, memory="host", autotuned=False)


async def sparcml(comm: Comm, entries: Sparse, series: sparse.Series) -> sparse.Reduced:
    r"""Sparse recursive doubling with a switch to dense vectors (Renggli et al. 2019, section 5.3). Any p.

    ::

        3:1, 7:2    7:5    1:4, 3:1    9:1        Partners at the distances 1, 2, 4, ... exchange their entries,
            \______/           \______/            position:value, and add them. A sum that takes more bytes as
            3:1, 7:7          1:4, 3:1, 9:1        entries than as a dense vector is a dense vector from then on.
                 \________________/
                1:4, 3:2, 7:7, 9:1

    The sum is exact: it lacks no entry. Ranks above the largest power of two send their entries to a partner
    first, and receive the sum at the end.

    n: bytes of a rank's entries. The formulas are for equal positions on all ranks, which keep sums short.
    Disjoint positions cost the bytes of an allgather, n*(p - 1), up to the switch.

    Messages, busiest rank: floor(log2(p)) + (p & (p - 1) > 0)
    Bytes, busiest rank: n*(floor(log2(p)) + (p & (p - 1) > 0))
    Time, p a power of two: log2(p)*(alpha + n*beta + 6*n*gamma)
    Time, p not a power of two: (floor(log2(p)) + 2)*(alpha + n*beta) + 6*(floor(log2(p)) + 1)*n*gamma
    """
    size, power = series.size, 1 << (comm.size.bit_length() - 1)
    mine: Sparse | Array = _shorter(entries, size)
    most = comm.size * series.most * sparse.entry_bytes(entries)
    with comm.scratch(min(most, size * entries.values.itemsize), sparse.message(entries)) as inbox:
        if comm.rank >= power:
            await comm.send(_sent(mine), comm.rank - power)
            status = await comm.recv(inbox, comm.rank - power, tag=0)
            mine = _received(inbox[: status.count], entries, comm.rank - power, size)
        else:
            guest, distance = comm.rank + power, 1
            if guest < comm.size:
                status = await comm.recv(inbox, guest, tag=0)
                mine = await _add(comm, mine, _received(inbox[: status.count], entries, guest, size), size)
            while distance < power:
                partner = comm.rank ^ distance
                status = await comm.exchange(_sent(mine), partner, inbox, partner)
                mine = await _add(comm, mine, _received(inbox[: status.count], entries, partner, size), size)
                distance *= 2
            if guest < comm.size:
                await comm.send(_sent(mine), guest)
    if not isinstance(mine, Sparse):
        mine = await comm.apply("to entries", partial(sparse.nonzeros, mine), mine.nbytes)
    return sparse.Reduced(mine, sparse.between(entries, 0, 0))


def _shorter(entries: Sparse, size: int) -> Sparse | Array:
    """Return the entries, or the dense vector if that is not longer on the wire."""
    return entries if sparse.nbytes(entries) < size * entries.values.itemsize else sparse.dense(entries, size)


def _sent(part: Sparse | Array) -> Array:
    if isinstance(part, Sparse):
        return sparse.message(part)
    return part.view(np.uint8)


def _received(message: Array, like: Sparse, sender: int, size: int) -> Sparse | Array:
    """Return the sum of a message, which is a dense vector if it has that length: entries are always shorter."""
    if len(message) < size * like.values.itemsize:
        return sparse.opened(message, like, sender, size)
    return sparse.finite(message.copy().view(like.values.dtype), sender)


async def _add(comm: Comm, mine: Sparse | Array, theirs: Sparse | Array, size: int) -> Sparse | Array:
    if isinstance(mine, Sparse):
        if isinstance(theirs, Sparse):
            both = partial(sparse.summed, [mine, theirs])
            return _shorter(await comm.apply("add", both, sparse.PASSES * sparse.nbytes(mine, theirs)), size)
        mine, theirs = theirs, mine
    if isinstance(theirs, Sparse):
        await comm.apply("add", partial(_scatter, mine, theirs), sparse.nbytes(theirs))
    else:
        await comm.add(mine, theirs)
    return mine


def _scatter(whole: Array, entries: Sparse) -> None:
    whole[entries.indices] += entries.values
