from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm


async def native_nonblocking(comm: Comm, buffer: Array) -> None:
    """The MPI library's own MPI_Iallreduce, waited for: what was started meanwhile goes on. Any p.

    Libraries choose other algorithms for it than for MPI_Allreduce. Beside other programs ``native`` is one too.
    """
    await comm.native("nonblocking allreduce", buffer)
