"""The reference kernels: numpy and the BLAS it brings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.nn.backend import Backend


def numpy() -> Backend:
    """Reference kernels in numpy, the ones that others are held against."""
    from hpcdl.nn.kernels.numpy.backend import BACKEND

    return BACKEND
