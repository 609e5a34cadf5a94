from math import isqrt
from typing import Final

from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.aggregation.ring import allgather, reduce_scatter, ring
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import partition

TRAITS: Final = Aggregation(composite=True, autotuned=False)


async def torus(comm: Comm, buffer: Array, *, rows: int | None = None) -> None:
    """Two-dimensional torus: reduce-scatter along rows, ring along columns, allgather along rows. Any p.

    ::

        0 - 1 - 2 - (0)      A ring's bytes with fewer steps: 2*(rows + columns - 2) instead of 2*(p - 1)
        |   |   |            (Mikami et al. 2018, on GPUs; Jouppi et al. 2020, the TPU's network). By default
        3 - 4 - 5 - (3)      ``rows`` is the largest divisor of p up to its square root; for a prime p the torus
        |   |   |            is a ring.
       (0) (1) (2)

    rows = max(r for r in range(1, p + 1) if p%r == 0 and r*r <= p)
    Messages, busiest rank: 2*(rows + p//rows - 2)
    Bytes, busiest rank: 2*n*(p - 1)/p
    Time: 2*(rows + p//rows - 2)*alpha + 2*n*(p - 1)/p*beta + n*(p - 1)/p*gamma

    Raises ValueError if ``rows`` does not divide p.
    """
    if rows is None:
        rows = max(divisor for divisor in range(1, isqrt(comm.size) + 1) if comm.size % divisor == 0)
    if rows < 1 or comm.size % rows:
        raise ValueError(f"rows = {rows} with {comm.size} ranks: must divide {comm.size}")
    columns = comm.size // rows
    row = await comm.subcommunicator(lambda rank: rank // columns, ("row", columns))
    column = await comm.subcommunicator(lambda rank: rank % columns, ("column", columns))
    chunks = partition(buffer, columns)
    await reduce_scatter(row, chunks)
    await ring(column, chunks[row.rank])
    await allgather(row, chunks)
