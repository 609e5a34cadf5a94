"""Autotuning: measure the best allreduce of each size on the ranks of the job, for the scheme ``auto``."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Coroutine
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl import registry
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.fabric.network import Network


Scheme = Callable[..., Coroutine[Any, Any, None]]

_ROUNDS: Final = 6
_TURN_NS: Final = 15_000_000
"""Time of a candidate in a round, about."""
_MOST: Final = 400
"""Operations in a turn, at most: 60 of 4 bytes take a quarter of a millisecond, too short to rank candidates."""
_HOPELESS: Final = 1.5
"""Times the best's time beyond which a candidate drops out after its first turn."""
_BEHIND: Final = 1.15
"""Times the best's time beyond which a candidate drops out after a further turn."""


def candidates(*, simulated: bool = False) -> list[str]:
    """Return the schemes that ``auto`` chooses from, sorted; ``simulated``: without those of a library."""
    declared = {name: registry.traits("aggregation", name, Aggregation) for name in registry.names("aggregation")}
    return [name for name, one in declared.items() if one.autotuned and not (simulated and one.native)]


class Choices(dict[int, Scheme]):
    """The best scheme by size in bytes; looked up once for each size, then kept.

    ``times[name][bytes]``: seconds. Between two measured sizes a scheme's time is interpolated linearly, which is
    Hockney's alpha + n*beta of that piece; beyond them, extrapolated through the nearest two.
    """

    def __init__(self, times: Mapping[str, Mapping[int, float]]) -> None:
        super().__init__()
        self.times = times

    def name(self, size: int) -> str:
        """Return the name of the best scheme at ``size`` bytes."""
        return min(self.times, key=lambda name: _at(self.times[name], size))

    def __missing__(self, size: int) -> Scheme:
        self[size] = found = registry.find("aggregation", self.name(size))
        return found


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
) -> Choices:
    """Measure all candidates at ``sizes`` bytes, multiples of the type's; ``clock`` counts ns. Every rank calls.

    The candidates take turns in an order that changes, several operations each, after a barrier each; those far
    behind drop out. An operation takes as long as its slowest rank, and a candidate's time is the median over all
    of its operations. All ranks learn all times, and so choose alike.
    """
    times: dict[str, dict[int, float]] = {}
    for size in sorted(set(sizes)):
        buffer = comm.memory.allocate(size // np.dtype(dtype).itemsize, dtype)
        for name, seconds in (await _compare(comm, buffer, clock)).items():
            times.setdefault(name, {})[size] = seconds
    return Choices(times)


async def _compare(comm: Comm, buffer: Array, clock: Callable[[], int]) -> dict[str, float]:
    samples: dict[str, list[npt.NDArray[np.int64]]] = {}
    turns: dict[str, int] = {}
    for name in candidates():
        scheme = registry.find("aggregation", name)
        try:
            await _turn(comm, scheme, buffer, 1, clock)
        except ValueError:  # ranks on several hosts share no memory; a library may lack a call: all ranks hear it
            continue
        first = await _turn(comm, scheme, buffer, 2, clock)
        samples[name] = []
        turns[name] = int(np.clip(_TURN_NS // max(1, int(first.min())), 3, _MOST))
    remaining = sorted(samples)
    for number in range(_ROUNDS):
        for name in np.random.default_rng(number).permutation(remaining).tolist():
            scheme = registry.find("aggregation", name)
            samples[name].append(await _turn(comm, scheme, buffer, turns[name], clock))
        medians = {name: float(np.median(np.concatenate(samples[name]))) for name in samples}
        limit = min(medians[name] for name in remaining) * (_BEHIND if number else _HOPELESS)
        remaining = [name for name in remaining if medians[name] <= limit]
    behind = max(medians[name] for name in remaining)  # or one of few samples might win after all
    return {name: (took if name in remaining else max(took, behind)) * 1e-9 for name, took in medians.items()}


async def _turn(
    comm: Comm, scheme: Scheme, buffer: Array, count: int, clock: Callable[[], int]
) -> npt.NDArray[np.int64]:
    """Return the time of each of ``count`` operations on its slowest rank (ns)."""
    took = np.empty(count, np.int64)
    for number in range(count):
        await comm.native("barrier", buffer)
        begin = clock()
        await scheme(comm, buffer)
        took[number] = clock() - begin
    slowest: npt.NDArray[np.int64] = (await comm.allgather_words(took)).max(axis=0)
    return slowest


def foretold(ranks: int, network: Network, sizes: Sequence[int], dtype: npt.DTypeLike) -> Choices:
    """Choose by simulated time, among schemes whose messages are known."""
    times: dict[str, dict[int, float]] = {}
    for size in sizes:
        payload = phantom(size // np.dtype(dtype).itemsize, dtype)
        for name in candidates(simulated=True):
            world = simulated(ranks, network)
            scheme = registry.find("aggregation", name)
            try:
                world.run(lambda comm, scheme=scheme, payload=payload: scheme(comm, payload))  # type: ignore[misc]
            except ValueError:
                continue
            times.setdefault(name, {})[size] = world.now
    return Choices(times)
