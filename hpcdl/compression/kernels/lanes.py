"""Sums in a fixed order, which all machines round alike, and which vector instructions still compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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


LANES: Final = 64
"""Partial sums: lane i adds entries i, i + 64, i + 128, ..."""
CHUNK: Final = 1 << 14
"""Entries of which lanes are summed; longer segments add their chunks in order. A GPU sums chunks concurrently."""


@njit(nogil=True, cache=True)
def total(lanes: Array, used: int) -> float:
    """Return the sum of the first ``used`` of all lanes; ``lanes`` is overwritten."""
    if used < LANES:
        result = 0.0
        for i in range(used):
            result += lanes[i]
        return result
    width = LANES
    while width > 1:
        width //= 2
        lower, upper = lanes[:width], lanes[width : 2 * width]
        for i in range(width):
            lower[i] += upper[i]
    return float(lanes[0])


@njit(nogil=True, cache=True)
def add_chunks(sums: Array, firsts: Array, totals: Array) -> None:
    """Write the sums of segments to ``totals`` (segments, k), of those of their chunks (chunks, k).

    ``firsts`` (segments + 1,): first chunk of each segment.
    """
    totals[:] = 0
    for s in range(len(firsts) - 1):
        for c in range(firsts[s], firsts[s + 1]):
            for k in range(totals.shape[1]):
                totals[s, k] += sums[c, k]
