"""Break-even bandwidth of a compressor: below it the compressed exchange is faster than another one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


WON: Final = 1.05
"""Compression wins if the step is so many times as fast."""
HALVINGS: Final = 5
"""Halvings of the range of a search, as logarithms, before the last interpolation."""


def bandwidth(saved_bytes: float, added_seconds: float) -> float:
    """Return the break-even bandwidth of exchanges that do not overlap with computing (bytes/s).

    A step at the bandwidth B takes t + n/B. Compression saves ``saved_bytes`` of n and adds ``added_seconds`` to
    t: encoding, decoding and latencies. Steps are equal at saved_bytes/added_seconds. 0: compression never pays;
    infinity: it always does.
    """
    if saved_bytes <= 0:
        return math.inf if added_seconds < 0 else 0.0
    return saved_bytes / added_seconds if added_seconds > 0 else math.inf


def crossing(gain: Callable[[float], float], low: float, high: float) -> float | None:
    """Return the bandwidth where ``gain`` becomes negative (bytes/s); None: nowhere from ``low`` to ``high``.

    ``gain(B)``: step time without compression less that with it, for steps that overlap with computing. Of several
    changes of sign one is found.
    """
    if (first := gain(low)) <= 0 or (last := gain(high)) > 0:
        return None
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        if (gained := gain(middle)) > 0:
            low, first = middle, gained
        else:
            high, last = middle, gained
    share = first / (first - last)
    return math.exp((1 - share) * math.log(low) + share * math.log(high))
