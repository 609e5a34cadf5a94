"""Reference kernels in numpy with its BLAS."""

from __future__ import annotations

from hpcdl.nn.backend import Backend


def numpy() -> Backend:
    """Return the reference backend; tests compare other backends with it."""
    from hpcdl.nn.kernels.numpy.backend import BACKEND

    return BACKEND
