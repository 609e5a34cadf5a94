"""Sum per channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array


def channel_sum(x: Array) -> Array:
    """Sum (N, ..., C) to (C,): within each image by BLAS, then over images, which limits rounding errors."""
    n, channels = len(x), x.shape[-1]
    pixels = x[0, ..., 0].size if n else 1
    per_image: Array = np.ones((1, pixels), x.dtype) @ x.reshape(n, pixels, channels)
    total: Array = per_image.sum(axis=(0, 1))
    return total
