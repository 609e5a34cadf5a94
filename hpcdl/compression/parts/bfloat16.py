"""bfloat16 vectors: the upper halves of float32 numbers, in a subclass of numpy's array."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

_HALF: int = 0x7FFF


class BFloat16(np.ndarray[Any, np.dtype[np.uint16]]):
    """A vector of bfloat16 numbers; numpy sees uint16. ``+=`` adds in float32 and rounds, to even on ties.

    Slices, and buffers borrowed in its likeness, are of this class too, so that schemes add as they add other
    vectors. A library that sums its memory itself would add integers.
    """

    def __iadd__(self, addend: Any) -> Self:  # type: ignore[misc, override]
        assign(self, widened(self) + widened(addend))
        return self


def vector(size: int) -> BFloat16:
    """Return a vector of ``size`` zeros."""
    return np.zeros(size, np.uint16).view(BFloat16)


def widened(narrow: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return bfloat16 numbers, uint16 (n,), as float32 (n,)."""
    wide = np.asarray(narrow).astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def assign(narrow: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
    """Round ``values`` to the nearest bfloat16, even on ties; write them to ``narrow``.

    Not a number has no meaning here. Values that round beyond the largest number become infinite.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> 16) & np.uint32(1)
    np.right_shift(bits + (odd + np.uint32(_HALF)), 16, out=np.asarray(narrow), casting="unsafe")
