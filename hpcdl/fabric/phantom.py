"""Payloads of a size and nothing else, which is all that a simulation needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from hpcdl.fabric.comm import Array


class Phantom(np.ndarray[Any, np.dtype[Any]]):
    """An array that has a size but no memory of its own: a size-only payload for simulation."""

    def __imul__(self, _factor: object) -> Self:  # type: ignore[misc]
        """Leave it as it is: there are no numbers to scale."""
        return self


def phantom(size: int, dtype: npt.DTypeLike = np.float32) -> Array:
    """A vector of ``size`` elements that takes no memory (stride 0, read-only)."""
    return np.broadcast_to(np.zeros((), dtype), (size,)).view(Phantom)
