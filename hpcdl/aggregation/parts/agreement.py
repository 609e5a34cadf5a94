"""Small collectives by which ranks agree on numbers, and a gathering of vectors whose lengths all ranks know."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.aggregation.parts.folding import doubled, folded
from hpcdl.fabric.vectors import Phantom, phantom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array, Comm


async def sum_counts(comm: Comm, counts: Array) -> None:
    """Sum a short vector over all ranks, in place: recursive doubling, equal bits on all ranks."""
    await folded(comm, counts, doubled)


async def table(comm: Comm, *numbers: int) -> Array:
    """Return the ``numbers`` of all ranks, (p, numbers), int32."""
    mine = np.array(numbers, np.int32)
    rows = await concatenated(comm, mine, [len(mine)] * comm.size)
    return rows.reshape(comm.size, len(mine))


async def concatenated(comm: Comm, mine: Array, lengths: Sequence[int]) -> Array:
    """Return the vectors of all ranks one after the other; ``lengths`` are those of the ranks (Bruck et al. 1997).

    Messages: ceil(log2(p)). Bytes: those of all vectors but one, at most.
    """
    size, rank = comm.size, comm.rank
    turned = [lengths[(rank + distance) % size] for distance in range(size)]
    edges = list(accumulate(turned, initial=0))
    whole = phantom(edges[-1], mine.dtype) if type(mine) is Phantom else np.empty(edges[-1], mine.dtype)
    if type(mine) is not Phantom:
        whole[: len(mine)] = mine
    distance = 1
    while distance < size:
        count = min(distance, size - distance)
        arriving = whole[edges[distance] : edges[distance + count]]
        await comm.exchange(whole[: edges[count]], (rank - distance) % size, arriving, (rank + distance) % size)
        distance *= 2
    if type(mine) is Phantom:
        return whole
    begin = edges[size - rank]  # where rank 0's vector is
    return np.concatenate((whole[begin:], whole[:begin])) if rank else whole
