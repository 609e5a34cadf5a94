"""float16 vectors that add fast: numpy converts each number by itself, a compiled kernel many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from hpcdl.compression.parts.device import Device
    from hpcdl.fabric.comm import Array


class Float16(np.ndarray[Any, np.dtype[np.float16]]):
    """A vector of float16 numbers. ``+=`` adds in float32 and rounds, to even on ties, as numpy does.

    Slices, and buffers borrowed in its likeness, are of this class too, so that schemes add as they add other
    vectors. Sums beyond 65519 are infinite, without a warning.
    """

    def __iadd__(self, addend: Any) -> Self:  # type: ignore[misc, override]
        from hpcdl.compression.kernels.halves import add_float16  # late: listing compressors must not load numba

        add_float16(np.asarray(self).view(np.uint16), np.asarray(addend).view(np.uint16))
        return self


def vector(size: int, device: Device | None = None) -> Array:
    """Return a vector of ``size`` zeros; a GPU's own vectors of float16 add so."""
    return np.zeros(size, np.float16).view(Float16) if device is None else device.zeros((size,), "float16")


def bits(numbers: Array) -> Array:
    """Return a view of float16 numbers as uint16, without :class:`Float16`."""
    view = numbers.view(np.uint16)
    return np.asarray(view) if isinstance(view, Float16) else view
