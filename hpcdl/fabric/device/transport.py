"""Transports of arrays that are not numpy's, one per process, and NCCL's allreduce.

The environment variable HPCDL_TRANSPORT chooses. Without it: ``device`` if the loaded library reports support
(MPIX_Query_cuda_support) and a probe message arrives, sent in another process because a failure is a crash;
otherwise ``staged``. All three have run between ranks of one GPU, none between two GPUs.
"""

import ctypes
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from hpcdl.extras import missing
from hpcdl.fabric.comm import Array, Status
from hpcdl.fabric.device import staged_copy
from hpcdl.fabric.device.staged_copy import Copies, Flow, Wait, Wire, Words, until

VARIABLE: Final = "HPCDL_TRANSPORT"

LAUNCHERS: Final = ("PMI", "OMPI_", "PRTE_", "MPI_LOCAL", "HYDI", "SLURM_")
"""Prefixes of the environment variables of launchers; a process without them is the only one of its job."""

_TO_ONESELF: Final = """
import cupy
from mpi4py import MPI
sent, got = cupy.arange(1 << 20, dtype="float32"), cupy.zeros(1 << 20, "float32")
cupy.cuda.get_current_stream().synchronize()
MPI.COMM_SELF.Sendrecv(sent, 0, 0, got, 0, 0)
assert (sent == got).all()
print("arrived")
"""

_PROBE_SECONDS: Final = 60


class Staged:
    """Through pinned memory, in pieces."""

    kind = "staged"

    def __init__(self, copies: Copies) -> None:
        self._copies = copies

    def send(self, wire: Wire, buffer: Array, dest: int, tag: int) -> Flow[None]:
        return staged_copy.send(wire, self._copies, buffer, dest, tag)

    def receive(self, wire: Wire, buffer: Array, source: int, tag: int) -> Flow[Status]:
        return staged_copy.receive(wire, self._copies, buffer, source, tag)


class Direct:
    """Device pointers, once the device has caught up: the library knows no streams."""

    kind = "device"

    def send(self, wire: Wire, buffer: Array, dest: int, tag: int) -> Flow[None]:
        number = wire.number(dest)
        yield from _caught_up()
        # Programs may catch up in another order; MPI matches messages in the order of their sends.
        yield from until(lambda: wire.is_next(dest, number))
        sent = wire.send(buffer, dest, tag)
        yield from until(sent)

    def receive(self, wire: Wire, buffer: Array, source: int, tag: int) -> Flow[Status]:
        yield from _caught_up()
        arrived, status = wire.receive(buffer, source, tag)
        yield from until(arrived)
        came = status()
        return Status(came.source, came.tag, came.count // buffer.itemsize)


class Ipc:
    """From device memory to device memory of another process of this host.

    The sender sends a handle of the allocation (made by the driver, 64 bytes), the offset, the size and the
    number. The receiver maps the allocation once, copies, and answers after the copy.
    """

    kind = "ipc"

    def __init__(self) -> None:
        import cupy

        self._cupy: Any = cupy
        self._mapped: dict[bytes, int] = {}
        self._driver = ctypes.CDLL("libcuda.so.1")

    def send(self, wire: Wire, buffer: Array, dest: int, tag: int) -> Flow[None]:
        number = wire.number(dest)
        yield from _caught_up()
        yield from until(lambda: wire.is_next(dest, number))
        note = np.zeros(_NOTE, np.uint8)
        base = self._base(buffer) if buffer.nbytes else 0
        if base:
            note[:64] = np.frombuffer(self._cupy.cuda.runtime.ipcGetMemHandle(base), np.uint8)
        place = buffer.data.ptr - base if base else 0  # type: ignore[attr-defined]
        note[64:].view(np.int64)[:] = place, buffer.nbytes, number
        sent = wire.send(note, dest, tag)
        yield from until(sent)
        # the receiver reads our memory: the buffer may be changed only after its answer
        taken = wire.receive_rest(np.zeros(1, np.uint8), dest, number)
        yield from until(taken)

    def receive(self, wire: Wire, buffer: Array, source: int, tag: int) -> Flow[Status]:
        """Receive at most ``buffer``. ValueError: the message is longer."""
        note = np.zeros(_NOTE, np.uint8)
        arrived, status = wire.receive(note, source, tag)
        yield from until(arrived)
        came = status()
        place, size, number = (int(value) for value in note[64:].view(np.int64))
        if size > buffer.nbytes:
            raise ValueError(f"a message of {size} bytes from rank {came.source} into {buffer.nbytes}")
        if size:
            there = self._map(note[:64].tobytes()) + place
            stream = self._cupy.cuda.get_current_stream()
            cuda = self._cupy.cuda
            pointer = cuda.MemoryPointer(cuda.UnownedMemory(there, size, None), 0)
            buffer.data.copy_from_device_async(pointer, size, stream)  # type: ignore[attr-defined]
            yield from _caught_up()
        answered = wire.send_rest(np.zeros(1, np.uint8), came.source, number)
        yield from until(answered)
        return Status(came.source, came.tag, size // buffer.itemsize)

    def _base(self, buffer: Array) -> int:
        """Return the address of the allocation that holds ``buffer``; CuPy cuts large ones up."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        pointer = ctypes.c_uint64(buffer.data.ptr)  # type: ignore[attr-defined]
        failed = self._driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), pointer)
        if failed:
            raise RuntimeError(f"cuMemGetAddressRange: error {failed}")
        return base.value

    def _map(self, handle: bytes) -> int:
        if handle not in self._mapped:
            runtime = self._cupy.cuda.runtime
            self._mapped[handle] = runtime.ipcOpenMemHandle(handle, runtime.cudaIpcMemLazyEnablePeerAccess)
        return self._mapped[handle]


_NOTE: Final = 64 + 3 * 8
"""Bytes of an :class:`Ipc` sender's note."""

Transport: TypeAlias = Staged | Direct | Ipc
"""Point-to-point messages of arrays on a device; on return from ``send`` the buffer may be changed."""


class PinnedCopies:
    """Copies between pinned memory and CuPy's arrays, on their own stream."""

    def __init__(self, chunk: int = staged_copy.CHUNK) -> None:
        import cupy

        self.chunk = chunk
        self._cupy: Any = cupy
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._shelf: list[tuple[Words, Words]] = []

    def borrow(self) -> tuple[Words, Words]:
        return self._shelf.pop() if self._shelf else (self._slot(), self._slot())

    def give_back(self, slots: tuple[Words, Words]) -> None:
        self._shelf.append(slots)

    def to_host(self, piece: Array, words: Words) -> Wait:
        # The copy waits on the device for the kernels that fill the piece; the host goes on.
        self._stream.wait_event(self._cupy.cuda.get_current_stream().record())
        piece.data.copy_to_host_async(words.ctypes.data, piece.nbytes, self._stream)  # type: ignore[attr-defined]
        return _event(self._stream)

    def to_device(self, words: Words, piece: Array) -> Wait:
        # It overwrites the piece after the kernels that still read it, and before those that are queued later.
        computing = self._cupy.cuda.get_current_stream()
        self._stream.wait_event(computing.record())
        piece.data.copy_from_host_async(words.ctypes.data, piece.nbytes, self._stream)  # type: ignore[attr-defined]
        done = self._stream.record()
        computing.wait_event(done)
        return lambda: bool(done.done)

    def _slot(self) -> Words:
        size = staged_copy.HEADER + self.chunk
        return np.frombuffer(self._cupy.cuda.alloc_pinned_memory(size), np.uint8, size)


def choose(environment: Mapping[str, str] = os.environ) -> Transport:
    """Return the transport for CuPy's arrays; ValueError for an unknown one in HPCDL_TRANSPORT."""
    wanted = environment.get(VARIABLE, "")
    if wanted not in {"", "device", "staged", "ipc"}:
        raise ValueError(f"{VARIABLE}={wanted!r} is neither device nor staged nor ipc")
    if wanted == "ipc":
        return Ipc()
    if wanted == "device" or (not wanted and cuda_aware() and arrives_at_oneself(environment)):
        return Direct()
    return Staged(PinnedCopies())


def cuda_aware(maps: Path = Path("/proc/self/maps")) -> bool:
    """Return whether the MPI library of this process reports support for device pointers."""
    try:
        paths = set(re.findall(r"(/\S*/libmpi\S*\.so\S*)$", maps.read_text(encoding="utf-8"), re.MULTILINE))
    except OSError:
        return False
    queries = (getattr(ctypes.CDLL(path), "MPIX_Query_cuda_support", None) for path in paths)
    return any(query is not None and query() for query in queries)


def arrives_at_oneself(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a message from device memory to device memory arrives, in a process that may crash."""
    alone = {name: value for name, value in environment.items() if not name.startswith(LAUNCHERS)}
    command = [sys.executable, "-P", "-c", _TO_ONESELF]
    try:
        probe = subprocess.run(
            command, env=alone, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return probe.returncode == 0 and probe.stdout.strip() == "arrived"


def _caught_up() -> Flow[None]:
    """Wait until the device has completed its queued work."""
    import cupy

    yield from until(_event(cupy.cuda.get_current_stream()))


def _event(stream: Any) -> Wait:
    event = stream.record()
    return lambda: bool(event.done)


def nccl_library() -> Any:
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
    """NCCL's allreduce among the ranks of one communicator. Has run between ranks of one GPU only.

    The ranks are joined when the first of their sums is asked for. ``gather`` and ``broadcast`` (from rank 0) are
    blocking collectives among the same ranks, which all come here at the same point of their programs.
    """

    def __init__(
        self, rank: int, size: int, gather: Callable[[object], list[object]], broadcast: Callable[[object], object]
    ) -> None:
        import cupy

        self._nccl = nccl = nccl_library()
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
