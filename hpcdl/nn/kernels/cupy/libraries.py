"""cuBLAS products in all precisions."""

from __future__ import annotations

from typing import Any, Final

import cupy
import numpy as np
from cupy.cuda import cublas, runtime

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
