from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.aggregation.parts.traits import Aggregation

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm

TRAITS: Final = Aggregation(native=True)


async def native_persistent(comm: Comm, buffer: Array) -> None:
    """MPI_Allreduce_init, once for each vector, and MPI_Start of the MPI library (MPI 4.0). Any p.

    For vectors that are summed repeatedly: the library may plan once. Requests exist until the program ends and
    hold references to their vectors. No cost is stated, as for ``native``. Raises ValueError if the library is
    older.
    """
    await comm.native("persistent allreduce", buffer)
