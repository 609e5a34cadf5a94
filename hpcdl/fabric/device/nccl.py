"""NCCL's allreduce, for comparison with the MPI library's. Has run between ranks of one GPU only."""

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from hpcdl.extras import missing
from hpcdl.fabric.comm import Array
from hpcdl.fabric.device.staged_copy import Wait


def library() -> Any:
    """Return CuPy's binding of NCCL. ValueError, one line: CuPy, NCCL or a GPU is missing."""
    try:
        import cupy
        from cupy.cuda import nccl
    except ImportError as error:
        raise ValueError(f"NCCL needs CuPy: {missing('cupy', f'cannot be loaded ({error})')}") from None
    if not nccl.available:
        raise ValueError("NCCL is not installed: pip install nvidia-nccl-cu13, or -cu12 for a CUDA 12 driver")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ValueError(f"NCCL needs a GPU: {error}") from None
    if not count:
        raise ValueError("NCCL needs a GPU, and this host has none that we may use")
    return nccl


class Nccl:
    """The ranks of one communicator, joined when the first of their sums is asked for.

    ``gather`` and ``broadcast`` (from rank 0) are blocking collectives among the same ranks, which all come here
    at the same point of their programs.
    """

    def __init__(
        self, rank: int, size: int, gather: Callable[[object], list[object]], broadcast: Callable[[object], object]
    ) -> None:
        import cupy

        self._nccl = nccl = library()
        self._cupy: Any = cupy
        here = (os.uname().nodename, cupy.cuda.Device().pci_bus_id)
        if Counter(gather(here))[here] > 1:
            # NCCL refuses two ranks on one GPU unless it takes them for ranks of two hosts
            os.environ["NCCL_HOSTID"] = f"{here[0]}-{rank}"
        name = broadcast(nccl.get_unique_id() if rank == 0 else None)
        self._group = nccl.NcclCommunicator(size, name, rank)
        self._types = {
            "float32": nccl.NCCL_FLOAT32,
            "float64": nccl.NCCL_FLOAT64,
            "int32": nccl.NCCL_INT32,
            "int64": nccl.NCCL_INT64,
        }

    def allreduce(self, operand: Array | None, buffer: Array) -> Wait:
        """Begin to sum ``operand``, or ``buffer`` in place if that is None, over the ranks into ``buffer``.

        The wait returned is over when the sum is there. ValueError: a type that NCCL does not add.
        """
        kind = self._types.get(buffer.dtype.name)
        if kind is None:
            raise ValueError(f"NCCL sums {', '.join(self._types)}, not {buffer.dtype}")
        stream = self._cupy.cuda.get_current_stream()
        if buffer.size:
            source: Any = buffer if operand is None else operand
            into: Any = buffer
            addresses = source.data.ptr, into.data.ptr
            self._group.allReduce(*addresses, buffer.size, kind, self._nccl.NCCL_SUM, stream.ptr)
        done = stream.record()
        return lambda: bool(done.done)
