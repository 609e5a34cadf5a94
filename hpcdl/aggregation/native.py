from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm, Parts


async def native(comm: Comm, buffer: Array) -> None:
    """The MPI library's own MPI_Allreduce; the record names the library and its version. Any p.

    The library chooses and changes its algorithm silently with the size and p, so that no cost is stated.
    """
    await comm.native("allreduce", buffer)


async def reduce_scatter(comm: Comm, chunks: Parts) -> None:
    """MPI_Reduce_scatter, whose result is then copied to its place: MPI's in-place form puts it elsewhere."""
    await comm.native("reduce_scatter", chunks.whole, chunks.counts)


async def allgather(comm: Comm, chunks: Parts) -> None:
    """MPI_Allgatherv, in place."""
    await comm.native("allgather", chunks.whole, chunks.counts)


async def all_to_all(comm: Comm, chunks: Parts) -> None:
    """MPI_Alltoall, in place; the chunks are equally long."""
    await comm.native("all_to_all", chunks.whole, chunks.counts)


async def broadcast(comm: Comm, buffer: Array) -> None:
    """MPI_Bcast from rank 0."""
    await comm.native("broadcast", buffer)


async def reduce(comm: Comm, buffer: Array) -> None:
    """MPI_Reduce to rank 0, in place there."""
    await comm.native("reduce", buffer)
