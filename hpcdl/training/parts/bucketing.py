"""Buckets of the gradient: slices that are summed while backward computes the rest.

Small buckets start early and overlap more; each one costs the latencies of its scheme's steps. Only the start of
the next forward can hide the last bucket, so large tensors are cut, and the last bucket is short.
"""

import math
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from hpcdl.fabric.comm import Comm
from hpcdl.fabric.task import Task
from hpcdl.nn.replica import Stage

LATENCY: Final = 0.08
"""Largest share of a bucket's transfer time that its latency may take."""
MIN_BYTES: Final = 1024
"""Shortest length that a suite may set."""
MIN_FITTED: Final = 1 << 16
"""Shortest length that is derived from a network, so that none has thousands of buckets."""


def bucket_bytes(alpha: float, beta: float, ranks: int, *, latency: float = LATENCY) -> int:
    """Return the fewest bytes n for which a ring's latency is at most ``latency`` times its transfer time.

    A ring takes 2(p - 1) alpha + 2 n (p - 1)/p beta (Patarasuk & Yuan 2009); the ratio is p alpha / (n beta).
    ``alpha`` is in s, ``beta`` in s/byte; the result is at least :data:`MIN_FITTED`. Raises ValueError for
    arguments that are not positive; ``alpha`` may be 0.
    """
    if not (alpha >= 0 and beta > 0 and latency > 0 and ranks >= 1):
        raise ValueError(
            f"alpha = {alpha}, beta = {beta}, latency = {latency}, ranks = {ranks}: "
            "alpha must be at least 0, the others more than 0"
        )
    return max(MIN_FITTED, math.ceil(ranks * alpha / (beta * latency)))


def check_bucket_bytes(_ranks: int, settings: Mapping[str, Any]) -> None:
    """Raise ValueError if ``bucket_bytes`` is neither 0 nor at least :data:`MIN_BYTES`."""
    given = settings["bucket_bytes"]
    if given is not None and given != 0 and given < MIN_BYTES:
        raise ValueError(f"bucket_bytes: must be 0 (one bucket) or at least {MIN_BYTES}, not {given}")


def buckets(spans: Sequence[slice], smallest: int) -> list[slice]:
    """Return slices of the gradient of at least about ``smallest`` elements, in the order in which to send them.

    ``spans`` are the stages' parts of the flat vector, in the order of the forward; some may be empty. Small
    stages are joined, large ones cut evenly; the last slice, at the start of the vector, may be shorter. A slice
    is complete when backward has computed the stage in which it begins. The slices are equal on all ranks.

    Raises ValueError for spans that are not adjacent, or ``smallest`` below 1.
    """
    if smallest < 1:
        raise ValueError(f"smallest = {smallest}: a slice has at least one element")
    for span, following in pairwise(spans):
        if span.stop != following.start:
            raise ValueError(
                f"stages are not adjacent: one ends at {span.stop}, the next begins at {following.start}"
            )
    slices: list[slice] = []
    end = spans[-1].stop if spans else 0
    for span in reversed(spans):
        waiting = end - span.start
        if waiting >= smallest:
            number = waiting // smallest
            slices += [
                slice(span.start + place * waiting // number, span.start + (place + 1) * waiting // number)
                for place in reversed(range(number))
            ]
            end = span.start
    if spans and end > spans[0].start:
        slices.append(slice(spans[0].start, end))
    return slices


def between(slices: Sequence[slice], tensors: Sequence[slice]) -> list[slice]:
    """Return the ``slices`` of :func:`buckets` with each cut moved to the nearest end of a tensor."""
    edges = sorted({edge for tensor in tensors for edge in (tensor.start, tensor.stop)})
    if not edges or not slices:
        return list(slices)
    cuts = [min(edges, key=lambda edge: abs(edge - piece.start)) for piece in slices[:-1]]
    bounds = [slices[0].stop, *cuts, slices[-1].start]
    return [slice(begin, end) for end, begin in pairwise(bounds) if begin < end] or list(slices[:1])


@dataclass(eq=False)
class CompleteBuckets:
    """``buckets`` of the gradient, each summed by ``reduce(bucket)`` in each step, the last one after backward."""

    comm: Comm
    buckets: Sequence[slice]
    reduce: Callable[[slice], Coroutine[Any, Any, None]]
    _unsent: deque[slice] = field(default_factory=deque)
    _under_way: deque[Task[Any]] = field(default_factory=deque)

    def begin(self) -> None:
        """Begin a step: no bucket is complete."""
        self._unsent.extend(self.buckets)

    def start_complete(self, stage: Stage) -> None:
        """Start the sums of the buckets that backward of ``stage`` has completed."""
        while len(self._unsent) > 1 and self._unsent[0].start >= stage.span.start:
            self._under_way.append(self.comm.start(self.reduce(self._unsent.popleft())))

    async def finish(self) -> None:
        """Sum the last bucket and wait for the others."""
        while self._unsent:
            await self.reduce(self._unsent.popleft())
        while self._under_way:
            await self._under_way.popleft()
