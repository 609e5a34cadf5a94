from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.aggregation.parts.traits import Aggregation

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm

TRAITS: Final = Aggregation(native=True)


async def native_nonblocking(comm: Comm, buffer: Array) -> None:
    """MPI_Iallreduce of the MPI library; other programs of the rank run while it waits. Any p.

    Libraries choose other algorithms for it than for MPI_Allreduce. Within overlapped programs ``native`` calls
    MPI_Iallreduce too.
    """
    await comm.native("nonblocking allreduce", buffer)
