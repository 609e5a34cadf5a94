from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.aggregation.parts.traits import Aggregation

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm

TRAITS: Final = Aggregation(native=True)


async def native_reduce_scatter_allgather(comm: Comm, buffer: Array) -> None:
    """MPI_Reduce_scatter, then MPI_Allgatherv of the MPI library, which tunes each of them separately. Any p.

    No cost is stated, as for ``native``.
    """
    await comm.native("reduce_scatter allgather", buffer)
