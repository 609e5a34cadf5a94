"""Host arrays to the device through pinned memory, beside what the device computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import cupy
import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from hpcdl.fabric.comm import Array

SLOTS: Final = 3
"""Pinned pieces in turn: one is filled, one is copied, one has just been."""


class Uploads:
    """Copies on a stream of their own.

    A copy waits for nothing that is computed: its target is memory that no kernel uses any more. Whoever computes
    waits for the copy, on the device. ``computing`` is the stream that the arrays are used on.
    """

    def __init__(self, computing: Any) -> None:
        self._computing = computing
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._free: dict[int, list[tuple[Any, Any]]] = {}
        self._slots: list[tuple[Any, Any] | None] = [None] * SLOTS
        self._turn = 0

    def upload(self, array: npt.NDArray[Any]) -> Array:
        """Return a copy of a host array on the device; the host may change its own at once."""
        if array.nbytes == 0:
            return cupy.empty(array.shape, array.dtype)  # type: ignore[no-any-return]
        memory = self._take(array.nbytes)
        loan = _Loan(self._free[array.nbytes], memory, self._computing)
        pointer = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(memory.ptr, array.nbytes, loan), 0)
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
        """Return pinned memory that no copy reads any more."""
        held = self._slots[self._turn]
        if held is not None:
            memory, done = held
            done.synchronize()
            if memory.mem.size >= size:
                return memory
        return cupy.cuda.alloc_pinned_memory(size)

    def _take(self, size: int) -> Any:
        """Return device memory; if it was used before, the copy waits until its last user is done."""
        shelf = self._free.setdefault(size, [])
        if not shelf:
            return cupy.cuda.Memory(size)
        memory, last_use = shelf.pop()
        self._stream.wait_event(last_use)
        return memory


class _Loan:
    """One piece of device memory while arrays on it exist: CuPy keeps this object alive as their owner."""

    def __init__(self, shelf: list[tuple[Any, Any]], memory: Any, computing: Any) -> None:
        self._shelf = shelf
        self._memory = memory
        self._computing = computing

    def __del__(self) -> None:
        # all that used it was started before
        self._shelf.append((self._memory, self._computing.record()))
