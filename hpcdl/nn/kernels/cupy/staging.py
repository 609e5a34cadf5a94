"""Copies of host arrays to the device through pinned memory, overlapped with computation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import cupy
import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from hpcdl.fabric.comm import Array

SLOTS: Final = 3
"""Pinned buffers used in rotation: one being filled, one being copied, one just copied."""


class Uploads:
    """Asynchronous copies on a separate stream.

    A copy does not wait for computation, because no kernel uses its target any more. On the device, ``computing``
    waits for the copy; it is the stream whose kernels use the arrays.
    """

    def __init__(self, computing: Any) -> None:
        self._computing = computing
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._free: dict[int, list[tuple[Any, Any]]] = {}
        self._slots: list[tuple[Any, Any] | None] = [None] * SLOTS
        self._turn = 0

    def upload(self, array: npt.NDArray[Any]) -> Array:
        """Return a copy on the device; the host array may be changed at once."""
        if array.nbytes == 0:
            return cupy.empty(array.shape, array.dtype)  # type: ignore[no-any-return]
        memory = self._take(array.nbytes)
        block = _DeviceBlock(self._free[array.nbytes], memory, self._computing)
        pointer = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(memory.ptr, array.nbytes, block), 0)
        target = cupy.ndarray(array.shape, array.dtype, pointer)
        pinned = self._pinned(array.nbytes)
        np.frombuffer(pinned, array.dtype, array.size).reshape(array.shape)[...] = array
        target.data.copy_from_host_async(pinned.ptr, array.nbytes, self._stream)
        done = self._stream.record()
        self._slots[self._turn] = (pinned, done)
        self._turn = (self._turn + 1) % SLOTS
        self._computing.wait_event(done)
        return target  # type: ignore[no-any-return]

    def _pinned(self, size: int) -> Any:
        """Return pinned memory whose last copy is complete."""
        held = self._slots[self._turn]
        if held is not None:
            memory, done = held
            done.synchronize()
            if memory.mem.size >= size:
                return memory
        return cupy.cuda.alloc_pinned_memory(size)

    def _take(self, size: int) -> Any:
        """Return device memory; the copy waits until the last user of reused memory is done."""
        free = self._free.setdefault(size, [])
        if not free:
            return cupy.cuda.Memory(size)
        memory, last_use = free.pop()
        self._stream.wait_event(last_use)
        return memory


class _DeviceBlock:
    """Device memory in use; CuPy keeps this object alive as the owner of the arrays on it."""

    def __init__(self, free: list[tuple[Any, Any]], memory: Any, computing: Any) -> None:
        self._free = free
        self._memory = memory
        self._computing = computing

    def __del__(self) -> None:
        # the event follows all kernels that use the memory
        self._free.append((self._memory, self._computing.record()))
