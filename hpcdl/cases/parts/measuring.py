"""Starts of a timed operation; test vectors and their expected results; second measurements.

A busy neighbour slows a pair of ranks, or a host, for a moment; a defect slows it each time. So what departs is
measured again after a pause, together with controls of usual speed. If it departs again, the mean counts;
otherwise the departure did not return.
"""

import json
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import sleep
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from hpcdl.cases.parts.step_simulation import late_rank
from hpcdl.fabric.comm import INPUT, Array, Comm
from hpcdl.fabric.faults import Delays, accurate_sleep
from hpcdl.fabric.pairs import DEPARTS
from hpcdl.fabric.vectors import partition
from hpcdl.trace.recorder import Scalar

SAME_ON_ALL_RANKS: Final = ("allreduce", "allgather", "broadcast")
"""Collectives after which all ranks have the same vector."""

_PERIOD: Final = 17


class Contents:
    """Test vector of a rank and its expected result, ``size`` elements of ``dtype``.

    Element i is (i mod 17) + rank before; so is every sum a whole number less than 2^24 up to a thousand ranks,
    and no part is another's.
    """

    def __init__(self, collective: str, comm: Comm, size: int, dtype: npt.DTypeLike) -> None:
        pattern = np.resize(np.arange(_PERIOD, dtype=dtype), size)
        ranks, rank = comm.size, comm.rank
        self.before = pattern + pattern.dtype.type(rank)
        self._where = slice(0, size)
        """Part of the vector that is checked."""
        if collective in ("allreduce", "reduce", "reduce_scatter"):
            self.after: npt.NDArray[Any] = pattern * ranks + ranks * (ranks - 1) // 2
            if collective == "reduce" and rank:
                self._where = slice(0, 0)
            elif collective == "reduce_scatter":
                counts = partition(pattern, ranks).counts
                self._where = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        else:
            self.after = pattern
            parts = partition(self.after, ranks)
            mine = parts[rank].copy()
            for source, part in enumerate(parts if collective != "broadcast" else ()):
                part[:] = (mine if collective == "all_to_all" else part) + source

    def right(self, vector: Array) -> bool:
        """Return True if ``vector`` is the expected result."""
        return np.array_equal(vector[self._where], self.after[self._where])


class BlockContents(Contents):
    """Test vectors of an alltoallv: element k of the block from rank i to rank j is 32 (i p + j) + k mod 17.

    Numbers of blocks go up to 2^19, so that all values are exact in float32. ``counts``: elements, (p, p).
    """

    def __init__(self, counts: npt.NDArray[np.int64], rank: int, dtype: npt.DTypeLike) -> None:
        numbers = 32 * (np.arange(counts.size).reshape(counts.shape) % (1 << 19))

        def vector(firsts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
            begins = np.repeat(lengths.cumsum() - lengths, lengths)
            return (np.repeat(firsts, lengths) + (np.arange(len(begins)) - begins) % _PERIOD).astype(dtype)

        self.before = vector(numbers[rank], counts[rank])
        self.after = vector(numbers[:, rank], counts[:, rank])
        self._where = slice(0, len(self.after))


def reals(rank: int, size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return ``size`` random numbers of a rank, whose sum over ranks depends on the order of adding."""
    return np.random.default_rng(rank).standard_normal(size).astype(dtype)


async def alike(comm: Comm, vector: npt.NDArray[Any]) -> bool:
    """Return True if all ranks have the same bits, by their checksums (CRC-32)."""
    sums = await comm.allgather_words(np.array([crc32(vector.data)]))
    return bool((sums == sums[0]).all())


STARTS: Final = ("barrier", "window")

_TRIALS: Final = 30
_TRIAL_SHARE: Final = 0.9
_MAX_LATE_NS: Final = 10_000_000
"""Longest lateness (ns) that extends the lead: a rank that lost its core for long would make all wait."""

_CLOSE_NS: Final = 300_000
"""Time before the start in which a rank polls (ns): sleep may last so much longer than was asked."""


class Barrier:
    """Each rank begins when it leaves the library's barrier, some a little later than others.

    An operation's time on a rank counts from its own begin, so that other ranks' times contain the delay of the
    last one. No clocks are compared.
    """

    def __init__(self, comm: Comm, clock: Callable[[], int]) -> None:
        self._comm = comm
        self.clock = clock

    async def ready(self) -> int:
        """Wait for the start; return its time on this rank's clock (ns)."""
        await self._comm.native("barrier", np.empty(0))
        return self.clock()

    async def description(self, warmup: int) -> dict[str, Scalar]:  # noqa: ARG002
        """Return fields of the record, without the first ``warmup`` times."""
        return {}


class Window(Barrier):
    """All ranks begin at one moment of rank 0's clock (SKaMPI's window; Hunold & Carpen-Amarie 2016, ReproMPI).

    The ranks exchange their times. The start is the latest of these times plus a lead: twice the time in which the
    exchange reaches the last rank in nine trials of ten. A rank that the exchange reaches later begins at once;
    the record has the share of such starts, and the lead grows by twice the delay. A rank sleeps until shortly
    before the start, then polls and yields its core.
    """

    def __init__(self, comm: Comm, clock: Callable[[], int]) -> None:
        super().__init__(comm, clock)
        self._offset, self._error = comm.clock()
        self._lead = 0
        self._late: list[int] = []
        """Delay of this rank at each start (ns)."""

    async def ready(self) -> int:
        """See :class:`Barrier`."""
        if not self._lead:
            self._lead = await self._longest()
        latest, late = await self._most(self._late[-1] if self._late else 0)
        self._lead += 2 * min(late, _MAX_LATE_NS)
        moment: int = latest + self._lead - self._offset
        now = self.clock()
        self._late.append(max(0, now - moment))
        self._wait(moment)
        return max(moment, now)

    async def description(self, warmup: int) -> dict[str, Scalar]:
        """See :class:`Barrier`."""
        errors = await self._comm.allgather_words(np.array([self._error]))
        late = (await self._comm.allgather_words(np.array(self._late[warmup:], np.int64))).any(axis=0)
        return {
            "start_lead_seconds": self._lead * 1e-9,
            "start_error_seconds": float(errors.max()) * 1e-9,
            "starts_late": float(late.mean()) if late.size else 0.0,
        }

    def _wait(self, moment: int) -> None:
        while (left := moment - self.clock()) > 0:
            if left > _CLOSE_NS:
                sleep((left - _CLOSE_NS) * 1e-9)
            else:
                os.sched_yield()

    async def _most(self, late: int) -> tuple[int, int]:
        """Return the latest time of all ranks (ns, rank 0's clock), and the longest of their delays ``late``."""
        time, most = (await self._comm.allgather_words(np.array([self.clock() + self._offset, late]))).max(axis=0)
        return int(time), int(most)

    async def _longest(self) -> int:
        mine = []
        for _ in range(_TRIALS):
            latest, _ = await self._most(0)
            mine.append(self.clock() + self._offset - latest)
        trials = (await self._comm.allgather_words(np.array(mine))).max(axis=0)
        return max(1, 2 * int(np.quantile(trials, _TRIAL_SHARE)))


def start(name: str, comm: Comm, clock: Callable[[], int]) -> Barrier:
    """Return the start ``name``: ``barrier`` or ``window``. Every rank must call."""
    return Window(comm, clock) if name == "window" else Barrier(comm, clock)


class CommonStarts:
    """Times of operations from common starts of all ranks, before which a late rank has ``delays``.

    ``settle()`` waits until the rank's vector is at rest, such as for a device.
    """

    def __init__(
        self, start: Barrier, comm: Comm, settle: Callable[[], object], delays: Delays | None = None
    ) -> None:
        self._start, self._comm, self._settle, self._delays = start, comm, settle, delays
        self._sleep = accurate_sleep().sleep if delays is not None else sleep
        self._arrived = np.zeros(1)
        self.moments = list[tuple[int, int]]()
        """Arrival and end of each operation since the common start (ns)."""

    async def of(self, operations: Coroutine[Any, Any, None]) -> tuple[int, int]:
        """Return begin and end (ns) of ``operations`` on this rank; all ranks call."""
        self._settle()
        begin = common = await self._start.ready()
        if self._delays is not None:
            self._sleep(self._delays.before(INPUT))
            begin = self._start.clock()
        await operations
        self._settle()
        end = self._start.clock()
        self.moments.append((begin - common, end - common))
        # checking the result, or spinning in a barrier, would keep cores busy that late ranks may need
        await self._comm.native("nonblocking allreduce", self._arrived)
        return begin, end


async def from_arrivals(comm: Comm, moments: Sequence[tuple[int, int]]) -> dict[str, Scalar]:
    """Return the median times from the first and the last arrival to the last rank's end, and the late rank.

    ``moments``: arrival and end of each repetition on this rank since the common start (ns).
    """
    table = (await comm.allgather_words(np.ravel(moments))).reshape(comm.size, -1, 2) * 1e-9
    arrivals, end = table[..., 0], table[..., 1].max(axis=0)
    first, last = (float(np.median(end - at)) for at in (arrivals.min(axis=0), arrivals.max(axis=0)))
    late = late_rank(np.median(arrivals, axis=1), first)
    return {"from_first_arrival_seconds": first, "from_last_arrival_seconds": last, **late}


CONTROLS: Final = 3
"""Items of usual speed that are measured beside those that depart, at most."""
PAUSE_SECONDS: Final = 1.0
"""Time before the next measurement: bursts of other processes end meanwhile."""
Times = npt.NDArray[np.int64]
Measure = Callable[[Sequence[int]], Awaitable[Times]]


async def confirmed(
    first: Times, rounds: Sequence[Sequence[int]], measure: Measure, measurements: int
) -> str | None:
    """Measure again what departs, until ``measurements`` in all; return the departures as JSON, None without any.

    ``first``: (items,) times (ns), the same on all ranks; 0 for an item that was not measured. ``rounds``: the
    items that were measured at the same time. ``measure(items)`` measures items of one round at the same time, and
    returns their times likewise. The text is a list of [item, departure, departure, ...], each a time / the usual
    time (the lower quartile of all), where later times are scaled by those of the
    least disturbed control.
    """
    known = np.flatnonzero(first)
    if not len(known):
        return None
    # of three hosts one slow one makes two of three pairs slow: the median would be of a slow pair
    usual = float(np.quantile(first[known], 0.25, method="lower"))
    departures = {int(item): [first[item] / usual] for item in known if first[item] > DEPARTS * usual}
    nearest = sorted((int(item) for item in known), key=lambda item: abs(first[item] - usual))
    controls = [item for item in nearest if item not in departures]
    for _ in range(measurements - 1):
        suspects = {item for item, values in departures.items() if min(values) > DEPARTS}
        if not suspects or not controls:
            break
        sleep(PAUSE_SECONDS)  # noqa: ASYNC251 - every rank pauses
        for items in rounds:
            chosen = [item for item in items if item in suspects]
            if not chosen:
                continue
            beside = [item for item in controls if item in items][:CONTROLS]
            again = await measure([*chosen, *beside])
            if not beside:  # no other pair of this round has a usual time
                beside = controls[:1]
                again = np.maximum(again, await measure(beside))
            # the least disturbed control: a busy one would clear what is slow
            scale = max(first[control] / again[control] for control in beside) / usual
            for item in chosen:
                departures[item].append(float(again[item] * scale))
    shown = [[item, *(round(float(value), 4) for value in values)] for item, values in departures.items()]
    return json.dumps(shown) if shown else None


async def hosts_of_ranks(comm: Comm) -> list[int]:
    """Return the first rank of each rank's host. Collective."""
    name = f"{os.environ.get('SLURMD_NODENAME')} {socket.gethostname()}"
    names = (await comm.allgather_words(np.array([crc32(name.encode())])))[:, 0].tolist()
    return [names.index(name) for name in names]


def median_ns(spans: Sequence[tuple[int, int]]) -> int:
    """Return the median length of ``spans`` (ns), at least 1."""
    return max(1, int(np.median([end - begin for begin, end in spans])))
