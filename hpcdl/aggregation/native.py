from typing import Final, cast

from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import Blocks, Parts

TRAITS: Final = Aggregation(native=True)


async def native(comm: Comm, buffer: Array) -> None:
    """MPI_Allreduce of the MPI library; the record names the library and its version. Any p.

    No cost is stated, because the library chooses its algorithm by size and p.
    """
    await comm.native("allreduce", buffer)


async def reduce_scatter(comm: Comm, chunks: Parts) -> None:
    """MPI_Reduce_scatter and a copy of the result to chunk r: MPI's in-place form stores it at the start."""
    await comm.native("reduce_scatter", chunks.whole, chunks.counts)


async def allgather(comm: Comm, chunks: Parts) -> None:
    """MPI_Allgatherv, in place."""
    await comm.native("allgather", chunks.whole, chunks.counts)


async def all_to_all(comm: Comm, chunks: Parts) -> None:
    """MPI_Alltoall, in place; the chunks are equally long."""
    await comm.native("all_to_all", chunks.whole, chunks.counts)


async def alltoallv(comm: Comm, blocks: Blocks) -> None:
    """MPI_Alltoallv."""
    await comm.native("alltoallv", cast("Array", blocks))  # only the fabric reads its fields


async def broadcast(comm: Comm, buffer: Array) -> None:
    """MPI_Bcast from rank 0."""
    await comm.native("broadcast", buffer)


async def reduce(comm: Comm, buffer: Array) -> None:
    """MPI_Reduce to rank 0, in place there."""
    await comm.native("reduce", buffer)
