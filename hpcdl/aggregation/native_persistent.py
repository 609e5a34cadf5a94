from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm


async def native_persistent(comm: Comm, buffer: Array) -> None:
    """The MPI library's own MPI_Allreduce_init, once for each vector, and MPI_Start (MPI 4.0). Any p.

    For vectors that are summed again and again: the library may plan once. Requests are kept with the
    communicator. Like ``native`` it states no cost. Raises ValueError where the library is older.
    """
    await comm.native("persistent allreduce", buffer)
