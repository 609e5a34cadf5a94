from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.aggregation.parts.traits import Aggregation

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm

TRAITS: Final = Aggregation(memory="device", native=True, autotuned=False)


async def nccl(comm: Comm, buffer: Array) -> None:
    """NCCL's allreduce, for vectors on GPUs; a library's own as ``native`` is. Has not run on a GPU yet. Any p.

    NCCL chooses its algorithm by size, p and topology, so that no cost is stated.
    """
    await comm.native("nccl", buffer)
