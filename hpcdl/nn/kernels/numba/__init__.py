"""Kernels for CPUs, compiled by numba."""

from __future__ import annotations

from hpcdl.nn.backend import Backend


def numba() -> Backend:
    """Return the numba backend: register tiles, Winograd, fused normalisation, pooling."""
    from hpcdl.nn.kernels.numba.backend import BACKEND

    return BACKEND
