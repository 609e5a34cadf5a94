"""Kernel of momentum correction."""

from __future__ import annotations

from typing import Any

from numba import njit


@njit(nogil=True, cache=True, error_model="numpy")
def correct(gradient: Any, velocity: Any, accumulated: Any, momentum: Any, scale: Any) -> None:
    """Set u = ``momentum`` u + ``scale`` g and v = v + u; ``gradient`` becomes v (Lin 2018, equation 4).

    ``velocity`` is u and ``accumulated`` is v; all have the shape (n,).
    """
    for i in range(len(gradient)):
        velocity[i] = momentum * velocity[i] + scale * gradient[i]
        accumulated[i] += velocity[i]
        gradient[i] = accumulated[i]
