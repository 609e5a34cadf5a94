"""Memory kept between steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Shape


class Buffer:
    """Arrays (n, *shape) for changing n, all in one piece of memory that grows with the largest n.

    Fresh memory costs a page fault every 4 KiB, often more than the arithmetic done in it. ``fill`` is
    written when memory is fresh and lasts wherever the borrower does not write. An array handed out is valid
    until the next call.
    """

    def __init__(self, shape: Shape, dtype: str, *, fill: float | None = None) -> None:
        self._fill = fill
        self._memory = np.empty((0, *shape), dtype)

    def rows(self, n: int) -> Array:
        """Return the first ``n`` rows."""
        if n > len(self._memory):
            self._memory = np.empty((n, *self._memory.shape[1:]), self._memory.dtype)
            if self._fill is not None:
                self._memory[...] = self._fill
        return self._memory[:n]
