"""Which pieces of the gradient to send, and in which order: long enough to be worth their latency, and no longer.

A piece of n bytes costs a scheme its steps' latencies and its bytes' transfer. Small pieces begin early and hide
behind what is left of backward; latency says how small they may be, and that is fitted, not copied: the links'
alpha and beta say it. What is complete last has nothing left to hide behind but the next forward's beginning,
so a large tensor is cut and none stands alone at the end.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

LATENCY: Final = 0.08
"""Share of a piece's transfer that its latency may come to."""


def bucket_bytes(alpha: float, beta: float, ranks: int, *, latency: float = LATENCY) -> int:
    """Return the least bytes whose ring spends at most ``latency`` times its transfer on latency.

    A ring takes 2(p - 1) alpha + 2 n (p - 1)/p beta (Patarasuk & Yuan 2009), so that its latency is a share
    p alpha / (n beta) of its transfer. Schemes of fewer steps, such as halving-doubling, stay below it.
    ``alpha`` is in seconds, ``beta`` in seconds per byte.

    ValueError: numbers that are no link's, or no share.
    """
    if not (alpha >= 0 and beta > 0 and latency > 0 and ranks >= 1):
        raise ValueError(
            f"alpha = {alpha}, beta = {beta}, latency = {latency}, ranks = {ranks}: "
            "alpha must be at least 0, the others more"
        )
    return math.ceil(ranks * alpha / (beta * latency))


def check_bucket_bytes(given: int | None) -> None:
    """Raise ValueError for a length that is none."""
    if given is not None and given < 0:
        raise ValueError(f"bucket_bytes: must be at least 0, not {given}")


def buckets(spans: Sequence[slice], smallest: int) -> list[slice]:
    """Cut the gradient into slices of about ``smallest`` elements or more, in the order in which to send them.

    ``spans`` are the stages' parts of the flat vector, in the order of the forward; those of stages without
    parameters are empty. Backward completes them from the last to the first, and a slice may be sent when the
    stage in which it begins is done. Stages are taken together until there is enough; what is enough for several
    slices is cut evenly; what is left at the start is the last slice, shorter than the others. Slices follow each
    other from the end of the vector to its start and cover it: on all ranks the same ones in the same order.

    ValueError: spans that do not follow each other, or ``smallest`` below 1.
    """
    if smallest < 1:
        raise ValueError(f"smallest = {smallest}: a slice has at least one element")
    for one, following in pairwise(spans):
        if one.stop != following.start:
            raise ValueError(f"stages lie apart: one ends at {one.stop}, the next begins at {following.start}")
    found: list[slice] = []
    end = spans[-1].stop if spans else 0
    for span in reversed(spans):
        waiting = end - span.start
        if waiting >= smallest:
            pieces = waiting // smallest
            found += [
                slice(span.start + piece * waiting // pieces, span.start + (piece + 1) * waiting // pieces)
                for piece in reversed(range(pieces))
            ]
            end = span.start
    if spans and end > spans[0].start:
        found.append(slice(spans[0].start, end))
    return found
