"""Cost of a message on the ranks of the job: Hockney's alpha and beta, by exchanges around a ring.

While a rank computes, a message costs more: the rank polls less often.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.training.parts.bucketing import bucket_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcdl.fabric.comm import Comm


SHORT: Final = 8
LONG: Final = 1 << 18
"""Bytes of the two messages that are timed."""
TRIALS: Final = 7


MOST_WORK: Final = 0.1
"""Seconds of work that overlap a message: a rank then polls at its lowest rate."""


async def measure_link(comm: Comm, clock: Callable[[], int] = perf_counter_ns) -> tuple[float, float]:
    """Return alpha in seconds and beta in seconds per byte; the same on all ranks, and every rank calls.

    All ranks exchange with their neighbours at once, as in a ring; an exchange takes as long as its slowest rank,
    and the median of several counts.
    """
    short, long = [await _exchanges(comm, size, clock) for size in (SHORT, LONG)]
    return short, max(long - short, 1e-9) / (LONG - SHORT)


async def measure_beside_work(
    comm: Comm, work: Callable[[float], object], clock: Callable[[], int] = perf_counter_ns
) -> tuple[float, float]:
    """Like :func:`measure_link`, with the delay of a long message by concurrent ``work`` added to alpha.

    ``work`` keeps a rank busy for so many seconds, as its training will.
    """
    alpha, beta = await measure_link(comm, clock)
    idle = alpha + (LONG - SHORT) * beta
    beside = await _exchanges(comm, LONG, clock, partial(work, min(2 * idle, MOST_WORK)))
    return alpha + max(0.0, beside - idle), beta


async def _exchanges(
    comm: Comm, size: int, clock: Callable[[], int], work: Callable[[], object] | None = None
) -> float:
    """Return the seconds of an exchange of ``size`` bytes around a ring, overlapped with ``work`` if given."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    outgoing, incoming = np.zeros(size, np.uint8), np.zeros(size, np.uint8)

    async def timed() -> int:
        begin = clock()
        await comm.exchange(outgoing, right, incoming, left)
        return clock() - begin

    took = np.zeros(TRIALS, np.int64)
    for trial in range(-1, TRIALS):  # the first one opens connections
        await comm.native("barrier", outgoing)
        if work is None:
            took[max(trial, 0)] = await timed()
        else:
            exchange = comm.start(timed())
            await comm.compute("work", work)
            took[max(trial, 0)] = await exchange
    slowest = (await comm.allgather_words(took)).max(axis=0)
    return float(np.median(slowest)) * 1e-9


def multiply(seconds: float) -> None:
    """Multiply matrices for so long: what convolutions do."""
    matrix = np.ones((128, 128), np.float32)
    until = perf_counter() + seconds
    while perf_counter() < until:
        matrix @ matrix


async def one_host(comm: Comm) -> bool:
    """Return True if all ranks share a host's memory. Every rank calls.

    Then the cores that compute also copy the messages: overlap gains nothing and disturbs backward.
    """
    hosts = (await comm.allgather_words(comm.memory.place(np.empty(0))))[:, 0]
    return bool((hosts == hosts[0]).all())


async def fitted_bucket_bytes(
    comm: Comm, work: Callable[[float], object], clock: Callable[[], int] = perf_counter_ns
) -> int | None:
    """Return the least bytes of a bucket, overlapped with such ``work``; None on one rank. Every rank calls."""
    if comm.size == 1:
        return None
    alpha, beta = await measure_beside_work(comm, work, clock)
    return bucket_bytes(alpha, beta, comm.size)
