"""Walk over a vector in pieces that neither a block nor a segment cuts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import njit

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array


@njit(nogil=True, cache=True)
def piece(cuts: Array, segment: int, start: int, stop: int) -> tuple[int, int]:
    """Return the segment of the entry ``start``, searched from ``segment`` on, and the piece's end.

    ``cuts`` (segments + 1,): boundaries. The piece ends with the segment, at ``stop`` at the latest.
    """
    while cuts[segment + 1] <= start:
        segment += 1
    return segment, min(stop, cuts[segment + 1])
