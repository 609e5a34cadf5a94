"""Collectives of MPI libraries other than MPI_Allreduce that sum a vector on all ranks, and NCCL's.

A library chooses its algorithm by size and p, so that no cost is stated. The record names library and version.
"""

from typing import Final

from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm


async def native_reduce_scatter_allgather(comm: Comm, buffer: Array) -> None:
    """MPI_Reduce_scatter, then MPI_Allgatherv of the MPI library, which tunes each of them separately. Any p."""
    await comm.native("reduce_scatter allgather", buffer)


async def native_nonblocking(comm: Comm, buffer: Array) -> None:
    """MPI_Iallreduce of the MPI library; other programs of the rank run while it waits. Any p.

    Libraries choose other algorithms for it than for MPI_Allreduce. Within overlapped programs ``native`` calls
    MPI_Iallreduce too.
    """
    await comm.native("nonblocking allreduce", buffer)


async def native_persistent(comm: Comm, buffer: Array) -> None:
    """MPI_Allreduce_init, once for each vector, and MPI_Start of the MPI library (MPI 4.0). Any p.

    For vectors that are summed repeatedly: the library may plan once. Requests exist until the program ends and
    hold references to their vectors. Raises ValueError if the library is
    older.
    """
    await comm.native("persistent allreduce", buffer)


async def nccl(comm: Comm, buffer: Array) -> None:
    """NCCL's allreduce, for vectors on GPUs; as ``native`` is a library's. Has run on one GPU only. Any p."""
    await comm.native("nccl", buffer)


OFFERS: Final = {
    function.__name__: function
    for function in (native_reduce_scatter_allgather, native_nonblocking, native_persistent, nccl)
}
TRAITS: Final = {name: Aggregation(native=True) for name in OFFERS} | {
    "nccl": Aggregation(memory="device", native=True, autotuned=False)
}
