"""State vectors of optimizers, created at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array


def state_vector(state: dict[str, Array], name: str, like: Array) -> Array:
    """Return the vector ``state[name]``; create zeros with the shape and dtype of ``like`` if missing.

    Raises ValueError if the vector has another shape or dtype, because an optimizer belongs to one vector.
    """
    if name not in state:
        state[name] = np.zeros_like(like)
    vector = state[name]
    if vector.shape != like.shape or vector.dtype != like.dtype:
        raise ValueError(
            f"{name} was made for {vector.dtype} parameters of shape {vector.shape}, "
            f"not for {like.dtype} of shape {like.shape}"
        )
    return vector
