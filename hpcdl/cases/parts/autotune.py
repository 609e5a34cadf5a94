"""Autotuning: measure the best allreduce of each size on the ranks of the job, for the scheme ``auto``."""

from bisect import bisect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter, perf_counter_ns
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hpcdl import registry
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.cases.parts.operations import operation
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.network import Network
from hpcdl.training.parts.bucketing import bucket_bytes

SHORT: Final = 8
LONG: Final = 1 << 18
"""Bytes of the two messages that are timed."""
TRIALS: Final = 7

MAX_WORK: Final = 0.1
"""Seconds of work that overlap a message: a rank then polls at its lowest rate."""


async def measure_link(
    comm: Comm, clock: Callable[[], int] = perf_counter_ns, work: Callable[[float], object] | None = None
) -> tuple[float, float]:
    """Return alpha in seconds and beta in seconds per byte; the same on all ranks, and every rank calls.

    All ranks exchange with their neighbours at once, as in a ring; an exchange takes as long as its slowest rank,
    and the median of several counts. The delay of a long message by concurrent ``work``, which keeps a rank busy
    for so many seconds as its training will, is added to alpha.
    """
    alpha, long = [await _exchanges(comm, size, clock) for size in (SHORT, LONG)]
    beta = max(long - alpha, 1e-9) / (LONG - SHORT)
    if work is None:
        return alpha, beta
    idle = alpha + (LONG - SHORT) * beta
    beside = await _exchanges(comm, LONG, clock, partial(work, min(2 * idle, MAX_WORK)))
    return alpha + max(0.0, beside - idle), beta


async def _exchanges(
    comm: Comm, size: int, clock: Callable[[], int], work: Callable[[], object] | None = None
) -> float:
    """Return the seconds of an exchange of ``size`` bytes around a ring, overlapped with ``work`` if given."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    outgoing, incoming = np.zeros(size, np.uint8), np.zeros(size, np.uint8)

    async def exchange() -> int:
        begin = clock()
        await comm.exchange(outgoing, right, incoming, left)
        return clock() - begin

    async def overlapped(work: Callable[[], object]) -> int:
        task = comm.start(exchange())
        await comm.compute("work", work)
        return await task

    slowest = await _slowest(comm, TRIALS + 1, exchange if work is None else partial(overlapped, work))
    return float(np.median(slowest[1:])) * 1e-9  # the first one opens connections


async def _slowest(comm: Comm, count: int, timed: Callable[[], Coroutine[Any, Any, int]]) -> npt.NDArray[np.int64]:
    """Return the time of each of ``count`` operations on its slowest rank (ns); ``timed`` returns a rank's own."""
    took = np.empty(count, np.int64)
    for number in range(count):
        await comm.native("barrier", np.empty(0))
        took[number] = await timed()
    slowest: npt.NDArray[np.int64] = (await comm.allgather_words(took)).max(axis=0)
    return slowest


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
    alpha, beta = await measure_link(comm, clock, work)
    return bucket_bytes(alpha, beta, comm.size)


Scheme = Callable[..., Coroutine[Any, Any, None]]

_ROUNDS: Final = 6
_TURN_NS: Final = 15_000_000
"""Time of a candidate in a round, about."""
_MAX_CALLS: Final = 400
"""Operations in a turn, at most: 60 of 4 bytes take a quarter of a millisecond, too short to rank candidates."""
_HOPELESS: Final = 1.5
"""Times the best's time beyond which a candidate drops out after its first turn."""
_BEHIND: Final = 1.15
"""Times the best's time beyond which a candidate drops out after a further turn."""


def candidates(*, simulated: bool = False) -> list[str]:
    """Return the schemes that ``auto`` chooses from, sorted; ``simulated``: without those of a library."""
    declared = {name: registry.traits("aggregation", name, Aggregation) for name in registry.names("aggregation")}
    return [name for name, traits in declared.items() if traits.autotuned and not (simulated and traits.native)]


class Choices(dict[int, Scheme]):
    """The best scheme by size in bytes; looked up once for each size, then kept.

    ``times[name][bytes]``: seconds. Between two measured sizes a scheme's time is interpolated linearly, which is
    Hockney's alpha + n*beta of that piece; beyond them, extrapolated through the nearest two. A ``table``
    (:func:`hpcdl.cases.keys.scheme.table_of`) has the schemes in place of times.
    """

    def __init__(self, times: Mapping[str, Mapping[int, float]], table: Mapping[int, str] | None = None) -> None:
        super().__init__()
        self.times, self.table = times, table

    def name(self, size: int) -> str:
        """Return the name of the best scheme at ``size`` bytes; of a table, that of the last row up to it."""
        if self.table is not None:
            return self.table[max((begin for begin in self.table if begin <= size), default=min(self.table))]
        return min(self.times, key=lambda name: _at(self.times[name], size))

    def __missing__(self, size: int) -> Scheme:
        self[size] = scheme = registry.find("aggregation", self.name(size))
        return scheme


def _at(times: Mapping[int, float], size: int) -> float:
    """Return the time at ``size``, interpolated."""
    known = sorted(times)
    if size in times or len(known) == 1:
        return times.get(size, times[known[0]])
    above = min(max(bisect(known, size), 1), len(known) - 1)
    low, high = known[above - 1], known[above]
    return times[low] + (times[high] - times[low]) * (size - low) / (high - low)


async def tune(
    comm: Comm,
    sizes: Iterable[int],
    clock: Callable[[], int] = perf_counter_ns,
    *,
    dtype: npt.DTypeLike = np.float32,
    table: Mapping[int, str] | None = None,
) -> Choices:
    """Measure all candidates at ``sizes`` bytes, multiples of the type's, unless there is a ``table``.

    Every rank calls. ``clock`` counts ns.
    The candidates take turns in an order that changes, several operations each, after a barrier each; those far
    behind drop out. An operation takes as long as its slowest rank, and a candidate's time is the median over all
    of its operations. All ranks learn all times, and so choose alike.
    """
    if table is not None:
        return Choices({}, table)
    times: dict[str, dict[int, float]] = {}
    for size in sorted(set(sizes)):
        buffer = comm.memory.allocate(size // np.dtype(dtype).itemsize, dtype)
        for name, seconds in (await _compare(comm, buffer, clock)).items():
            times.setdefault(name, {})[size] = seconds
    return Choices(times)


async def _compare(comm: Comm, buffer: Array, clock: Callable[[], int]) -> dict[str, float]:
    samples: dict[str, list[npt.NDArray[np.int64]]] = {}
    turns: dict[str, int] = {}

    async def timed(name: str) -> int:
        scheme, begin = registry.find("aggregation", name), clock()
        await scheme(comm, buffer)
        return clock() - begin

    for name in candidates():
        try:
            await _slowest(comm, 1, partial(timed, name))
        except ValueError:  # ranks on several hosts share no memory; a library may lack a call: all ranks hear it
            continue
        first = await _slowest(comm, 2, partial(timed, name))
        samples[name] = []
        turns[name] = int(np.clip(_TURN_NS // max(1, int(first.min())), 3, _MAX_CALLS))
    remaining = sorted(samples)
    for number in range(_ROUNDS):
        for name in np.random.default_rng(number).permutation(remaining).tolist():
            samples[name].append(await _slowest(comm, turns[name], partial(timed, name)))
        medians = {name: float(np.median(np.concatenate(samples[name]))) for name in samples}
        limit = min(medians[name] for name in remaining) * (_BEHIND if number else _HOPELESS)
        remaining = [name for name in remaining if medians[name] <= limit]
    behind = max(medians[name] for name in remaining)  # or one of few samples might win after all
    return {name: (took if name in remaining else max(took, behind)) * 1e-9 for name, took in medians.items()}


def choose_by_simulation(ranks: int, network: Network, sizes: Sequence[int], dtype: npt.DTypeLike) -> Choices:
    """Choose by simulated time, among schemes whose messages are known."""
    times: dict[str, dict[int, float]] = {}
    for size in sizes:
        for name in candidates(simulated=True):
            length = size // np.dtype(dtype).itemsize
            with suppress(ValueError):
                allreduce = operation("allreduce", name, {}, ranks, length, np.dtype(dtype).str)
                seconds = allreduce.simulate(network).seconds
                times.setdefault(name, {})[size] = seconds
    return Choices(times)
