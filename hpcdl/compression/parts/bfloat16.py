"""bfloat16 vectors: the upper halves of float32 numbers, in a subclass of numpy's array."""

from __future__ import annotations

from typing import Any, Self

import numpy as np


class BFloat16(np.ndarray[Any, np.dtype[np.uint16]]):
    """A vector of bfloat16 numbers; numpy sees uint16. ``+=`` adds in float32 and rounds, to even on ties.

    Slices, and buffers borrowed in its likeness, are of this class too, so that schemes add as they add other
    vectors. A library that sums its memory itself would add integers.
    """

    def __iadd__(self, addend: Any) -> Self:  # type: ignore[misc, override]
        from hpcdl.compression.kernels.halves import add_bfloat16  # late: listing compressors must not load numba

        add_bfloat16(np.asarray(self), np.asarray(addend))
        return self


def vector(size: int) -> BFloat16:
    """Return a vector of ``size`` zeros."""
    return np.zeros(size, np.uint16).view(BFloat16)
