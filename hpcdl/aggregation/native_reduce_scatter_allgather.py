from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm


async def native_reduce_scatter_allgather(comm: Comm, buffer: Array) -> None:
    """The MPI library's own MPI_Reduce_scatter and MPI_Allgatherv, whose halves it tunes apart. Any p.

    Like ``native`` it states no cost, for the library chooses its algorithms silently.
    """
    await comm.native("reduce_scatter allgather", buffer)
