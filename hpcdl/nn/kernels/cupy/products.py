"""Matrix products by cuBLAS, in any precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import cupy
import numpy as np
from cupy.cuda import cublas, runtime

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array

TYPES: Final = {
    "float32": runtime.CUDA_R_32F,
    "float64": runtime.CUDA_R_64F,
    "bfloat16": runtime.CUDA_R_16BF,
    "float16": runtime.CUDA_R_16F,
}

DEFAULT_ALGORITHM: Final = -1


class Products:
    """cuBLAS through ``gemmEx``; float32 products have all their bits, 16-bit ones are summed in float32."""

    def __init__(self) -> None:
        self._constants = {dtype: (np.ones(1, dtype), np.zeros(1, dtype)) for dtype in ("float32", "float64")}

    def multiply(
        self, a: Array, b: Array, out: Array, dtype: str, out_dtype: str, *, turn_a: bool, turn_b: bool
    ) -> None:
        """Set ``out`` (m, n) of ``out_dtype`` to a b, matrices of ``dtype``, transposed where turned.

        All three may have a dimension in front, and are as many products then. cuBLAS has columns first, so it is
        asked for out^T = b^T a^T.
        """
        m, n = out.shape[-2:]
        k = a.shape[-2] if turn_a else a.shape[-1]
        if not out.size:
            return
        if not k:
            out[...] = 0
            return
        double = dtype == "float64"
        one, zero = self._constants["float64" if double else "float32"]
        computed = cublas.CUBLAS_COMPUTE_64F if double else cublas.CUBLAS_COMPUTE_32F
        sizes = (cupy.cuda.device.get_cublas_handle(), _turned(turn_b), _turned(turn_a), n, m, k)
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


def _turned(turn: bool) -> int:
    return int(cublas.CUBLAS_OP_T if turn else cublas.CUBLAS_OP_N)


def _pitch(matrix: Any) -> int:
    """Elements from one row to the next."""
    return max(int(matrix.strides[-2] // matrix.itemsize), int(matrix.shape[-1]), 1)


def _step(matrices: Any) -> int:
    """Elements from one matrix to the next."""
    return int(matrices.strides[0] // matrices.itemsize)


def _address(matrix: Any) -> int:
    return int(matrix.data.ptr)
