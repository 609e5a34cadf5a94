"""Kernels for CPUs, compiled by numba."""

from __future__ import annotations

from hpcdl.nn.backend import Backend


def numba() -> Backend:
    """Return the numba backend: register tiles, Winograd, fused normalisation, pooling.

    ImportError: numba has no writable cache folder.
    """
    try:
        from hpcdl.nn.kernels.numba.backend import BACKEND
    except RuntimeError as error:
        raise ImportError(f"{error}; set NUMBA_CACHE_DIR to a writable folder") from error

    return BACKEND
