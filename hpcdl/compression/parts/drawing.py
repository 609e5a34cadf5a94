"""Random subsets of positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array


def subset(count: int, length: int, seed: int) -> Array:
    """Return ``count`` of the positions 0 to ``length`` - 1, int32, rising; all subsets are equally likely.

    Positions are drawn until enough are different; of more than half of them, those left out are drawn.
    """
    from hpcdl.compression.kernels import drawing  # late: listing compressors must not load numba

    found = np.empty(count, np.int32)
    drawing.subset(found, length, np.uint64(seed))
    return found
