"""cuBLAS products in all precisions, and copies of host arrays that overlap with computation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import cupy
import numpy as np
from cupy.cuda import cublas, runtime

if TYPE_CHECKING:
    import numpy.typing as npt

    from hpcdl.fabric.comm import Array


TYPES: Final = {
    "float32": runtime.CUDA_R_32F,
    "float64": runtime.CUDA_R_64F,
    "bfloat16": runtime.CUDA_R_16BF,
    "float16": runtime.CUDA_R_16F,
}

DEFAULT_ALGORITHM: Final = -1


class Products:
    """cuBLAS ``gemmEx``; float32 products use the full mantissa, 16-bit products are summed in float32."""

    def __init__(self) -> None:
        self._constants = {dtype: (np.ones(1, dtype), np.zeros(1, dtype)) for dtype in ("float32", "float64")}

    def multiply(
        self, a: Array, b: Array, out: Array, dtype: str, out_dtype: str, *, transpose_a: bool, transpose_b: bool
    ) -> None:
        """Set ``out`` (m, n) of ``out_dtype`` to the product of matrices of ``dtype``, each transposed on request.

        Arrays with a third dimension in front are batches. cuBLAS is column-major, so it computes
        out^T = b^T a^T.
        """
        m, n = out.shape[-2:]
        k = a.shape[-2] if transpose_a else a.shape[-1]
        if not out.size:
            return
        if not k:
            out[...] = 0
            return
        double = dtype == "float64"
        one, zero = self._constants["float64" if double else "float32"]
        computed = cublas.CUBLAS_COMPUTE_64F if double else cublas.CUBLAS_COMPUTE_32F
        sizes = (cupy.cuda.device.get_cublas_handle(), _operation(transpose_b), _operation(transpose_a), n, m, k)
        second, first, target = (
            (_address(array), TYPES[kind], _pitch(array))
            for array, kind in ((b, dtype), (a, dtype), (out, out_dtype))
        )
        alpha, beta = one.ctypes.data, zero.ctypes.data
        if out.ndim == 2:
            cublas.gemmEx(*sizes, alpha, *second, *first, beta, *target, computed, DEFAULT_ALGORITHM)
        else:
            cublas.gemmStridedBatchedEx(
                *(*sizes, alpha, *second, _step(b), *first, _step(a)),
                *(beta, *target, _step(out), len(out), computed, DEFAULT_ALGORITHM),
            )


def _operation(transpose: bool) -> int:
    return int(cublas.CUBLAS_OP_T if transpose else cublas.CUBLAS_OP_N)


def _pitch(matrix: Any) -> int:
    """Return the distance between rows, in elements."""
    return max(int(matrix.strides[-2] // matrix.itemsize), int(matrix.shape[-1]), 1)


def _step(matrices: Any) -> int:
    """Return the distance between matrices, in elements."""
    return int(matrices.strides[0] // matrices.itemsize)


def _address(matrix: Any) -> int:
    return int(matrix.data.ptr)


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
