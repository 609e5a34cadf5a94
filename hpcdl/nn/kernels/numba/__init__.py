"""Kernels compiled by numba: the CPU's fast path."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.nn.backend import Backend


def numba() -> Backend:
    """Kernels compiled for this CPU: register tiles, Winograd, fused normalisation, pooling."""
    from hpcdl.nn.kernels.numba.backend import BACKEND

    return BACKEND
