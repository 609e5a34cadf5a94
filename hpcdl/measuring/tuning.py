"""Measure which allreduce is best at which size on the ranks that are there, for the scheme ``auto``."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Coroutine
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl import registry
from hpcdl.fabric.phantom import phantom
from hpcdl.fabric.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.fabric.network import Network

Scheme = Callable[..., Coroutine[Any, Any, None]]

OF_THE_LIBRARY: Final = (
    *("native", "native_nonblocking", "native_persistent", "native_reduce_scatter_allgather"),
)
OURS: Final = (
    *("butterfly", "bruck", "halving_doubling", "circulant", "binomial", "direct", "ring", "segmented_ring"),
    *("two_shot", "double_tree"),
)
"""Those that are right for any p and need not know which ranks share a host."""

_ROUNDS: Final = 6
_TURN_NS: Final = 15_000_000
"""How long a candidate runs in a round, about."""
_MOST: Final = 400
"""Operations in a turn, at most: of 4 bytes 60 took a quarter of a millisecond, in one mood of the cores, and
the best could seem hopeless."""
_HOPELESS: Final = 1.5
"""After its first turn a candidate that took so many times the best's time is not measured again."""
_BEHIND: Final = 1.15
"""After further ones."""


class Choices(dict[int, Scheme]):
    """Of each size in bytes the best scheme; looked up once for each size, then kept.

    ``times[name][bytes]``: seconds. Between two sizes that were measured a scheme takes what lies on the line
    between its two times, which is Hockney's alpha + n*beta of that piece; beyond them, on the line through the
    nearest two.
    """

    def __init__(self, times: Mapping[str, Mapping[int, float]]) -> None:
        super().__init__()
        self.times = times

    def name(self, size: int) -> str:
        """The best scheme's name."""
        return min(self.times, key=lambda name: _at(self.times[name], size))

    def __missing__(self, size: int) -> Scheme:
        self[size] = found = registry.find("aggregation", self.name(size))
        return found


def _at(times: Mapping[int, float], size: int) -> float:
    """The time at ``size``, from those at other sizes."""
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
    behind drop out. An operation takes as long as its slowest rank, and the median over all of its operations
    speaks for a candidate. All ranks learn all times, and so choose alike.
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
    for name in (*OF_THE_LIBRARY, *OURS):
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
    """How many ns each of ``count`` operations takes on its slowest rank."""
    took = np.empty(count, np.int64)
    for number in range(count):
        await comm.native("barrier", buffer)
        begin = clock()
        await scheme(comm, buffer)
        took[number] = clock() - begin
    slowest: npt.NDArray[np.int64] = (await comm.meet(took)).max(axis=0)
    return slowest


def foretold(ranks: int, network: Network, sizes: Sequence[int], dtype: npt.DTypeLike) -> Choices:
    """Choose by simulated time; of a library's own nobody knows that."""
    times: dict[str, dict[int, float]] = {}
    for size in sizes:
        payload = phantom(size // np.dtype(dtype).itemsize, dtype)
        for name in OURS:
            world = simulated(ranks, network)
            scheme = registry.find("aggregation", name)
            try:
                world.run(lambda comm, scheme=scheme, payload=payload: scheme(comm, payload))  # type: ignore[misc]
            except ValueError:
                continue
            times.setdefault(name, {})[size] = world.now
    return Choices(times)
