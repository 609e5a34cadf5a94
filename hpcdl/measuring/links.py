"""What a message costs on the ranks that are there: Hockney's alpha and beta, by exchanges around a ring."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.training.bucketing import bucket_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcdl.fabric.comm import Comm

SHORT: Final = 8
LONG: Final = 1 << 18
"""Bytes of the two messages that are timed."""
TRIALS: Final = 7


async def measure_link(comm: Comm, clock: Callable[[], int] = perf_counter_ns) -> tuple[float, float]:
    """Return alpha in seconds and beta in seconds per byte; the same on all ranks, and every rank calls.

    All ranks exchange with their neighbours at once, as in a ring; an exchange takes as long as its slowest rank,
    and the median of several counts.
    """
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    times = []
    for size in (SHORT, LONG):
        outgoing, incoming = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        took = np.zeros(TRIALS, np.int64)
        for trial in range(-1, TRIALS):  # the first one opens connections
            await comm.native("barrier", outgoing)
            begin = clock()
            await comm.exchange(outgoing, right, incoming, left)
            took[max(trial, 0)] = clock() - begin
        slowest = (await comm.meet(took)).max(axis=0)
        times.append(float(np.median(slowest)) * 1e-9)
    short, long = times
    return short, max(long - short, 1e-9) / (LONG - SHORT)


async def one_host(comm: Comm) -> bool:
    """Whether all ranks share a host's memory. Every rank calls.

    Then messages are copies by the cores that compute: nothing hides behind computing, and beside backward they
    disturb it.
    """
    hosts = (await comm.meet(comm.memory.place(np.empty(0))))[:, 0]
    return bool((hosts == hosts[0]).all())


async def fitted_bucket_bytes(comm: Comm, clock: Callable[[], int] = perf_counter_ns) -> int | None:
    """Return the least bytes of a bucket on these ranks; None on one rank. Every rank calls."""
    if comm.size == 1:
        return None
    alpha, beta = await measure_link(comm, clock)
    return bucket_bytes(alpha, beta, comm.size)
