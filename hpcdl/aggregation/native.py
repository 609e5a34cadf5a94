from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm


async def native(comm: Comm, buffer: Array) -> None:
    """The MPI library's own MPI_Allreduce; the record names the library and its version. Any p.

    The library chooses and changes its algorithm silently with the size and p, so that no cost is stated.
    """
    await comm.native("allreduce", buffer)
