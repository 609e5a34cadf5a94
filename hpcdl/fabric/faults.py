"""Slower ranks and process failures: modelled compute time on real ranks, stragglers, failures before a step.

Work that is shorter than its model, or than a straggler's, is followed by a sleep.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, sleep
from typing import Final, NamedTuple, TypeVar

from hpcdl.fabric.comm import INPUT, Comm, Wrapper

T = TypeVar("T")

TRIAL: Final = 1e-3
"""Sleep (s) by which :func:`oversleep` measures."""
TRIALS: Final = 25
"""Sleeps of one measurement."""


class Clock(NamedTuple):
    """Clock and sleep (s) of a process."""

    now: Callable[[], float] = perf_counter
    sleep: Callable[[float], None] = sleep


REAL: Final = Clock()


def oversleep(clock: Clock = REAL) -> float:
    """Return the least time (s) by which a sleep exceeds its argument; more than that is load of the machine."""
    beyond = []
    for _ in range(TRIALS):
        begin = clock.now()
        clock.sleep(TRIAL)
        beyond.append(clock.now() - begin - TRIAL)
    return max(0.0, min(beyond))


def sleep_until(deadline: float, beyond: float, clock: Clock = REAL) -> None:
    """Sleep until ``deadline``; each sleep exceeds its argument by ``beyond`` seconds or more."""
    while (left := deadline - clock.now() - beyond) > 0:
        clock.sleep(left)


def accurate_sleep(clock: Clock = REAL) -> Clock:
    """Return a clock that sleeps as long as its argument (s), or longer under load.

    The kernel adds tens of microseconds to each sleep, :func:`oversleep`. A shorter time is spun.
    """
    beyond = oversleep(clock)

    def accurate(seconds: float) -> None:
        deadline = clock.now() + seconds
        sleep_until(deadline, beyond, clock)
        while clock.now() < deadline:
            pass

    return clock._replace(sleep=accurate)


@dataclass(eq=False)
class ModelledCompute(Wrapper[Comm]):
    """A communicator whose local work takes ``seconds`` by its label, or longer if the work does.

    So does arithmetic that belongs to an exchange, by ``costs`` of its label (s per byte that it touches).
    Messages progress during the sleep as they do during work. ``beyond`` is from :func:`oversleep`. Ranks do not
    spin, because several may share a core.
    """

    _seconds: Callable[[str], float]
    _beyond: float
    _clock: Clock = REAL
    _costs: Mapping[str, float] = field(default_factory=dict)

    async def compute(self, label: str, work: Callable[[], T]) -> T:
        return await self._comm.compute(label, self._slowed(work, self._seconds(label)))

    async def apply(self, label: str, work: Callable[[], T], touched_bytes: int) -> T:
        slowed = self._slowed(work, self._costs.get(label, 0.0) * touched_bytes)
        return await self._comm.apply(label, slowed, touched_bytes)

    def _slowed(self, work: Callable[[], T], seconds: float) -> Callable[[], T]:
        if not seconds:
            return work

        def slow_work() -> T:
            deadline = self._clock.now() + seconds
            result = work()
            sleep_until(deadline, self._beyond, self._clock)
            return result

        return slow_work


MAX_FACTOR: Final = 10_000
"""Greatest factor."""
MAX_PAUSE: Final = 86_400
"""Longest pause (s): a day."""
EVERY: Final = "all"
"""Value of ``rank``: every rank is slow, each with its own pauses."""


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A slow rank, or ``"all"``: its work takes ``factor`` times as long, or its batches have a pause.

    A batch has a pause of ``seconds``, or of ``by_rank``, with ``probability``, independently on every slow rank.
    It comes before the batch, or before its first work ``at``: "forward" or "backward" of any layer or, with the
    layer's name, of that one. A collective has it before it begins. Raises ValueError for numbers out of range and
    where no rank would be slow.
    """

    rank: int | str = ""
    factor: float = 1.0
    probability: float = 1.0
    seconds: float = 0.0
    by_rank: tuple[float, ...] = ()
    at: str = INPUT

    def __post_init__(self) -> None:
        if not self.by_rank and self.rank == "":
            raise ValueError("needs a setting 'rank', a number or 'all'")
        if isinstance(self.rank, str) and self.rank not in (EVERY, ""):
            raise ValueError(f"rank: must be a number or {EVERY!r}, not {self.rank!r}")
        if not 1 <= self.factor <= MAX_FACTOR:
            raise ValueError(f"factor: must be from 1 to {MAX_FACTOR}, not {self.factor}")
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability: must be between 0 and 1, not {self.probability}")
        for pause in (self.seconds, *self.by_rank):
            if not 0 <= pause <= MAX_PAUSE:
                raise ValueError(f"seconds: must be from 0 to {MAX_PAUSE}, not {pause}")
        if self.by_rank and (self.seconds or self.rank != ""):
            raise ValueError("by_rank: has the pauses of all ranks; leave rank and seconds out")
        if self.factor == 1 and not self.probability * self.longest:
            raise ValueError("give a factor of more than 1, or seconds of its pauses")

    def __str__(self) -> str:
        words = [f"rank {self.rank}" if isinstance(self.rank, int) else "every rank"]
        words += [f"{self.factor:g}x slower"] if self.factor > 1 else []
        pauses = "/".join(f"{pause:g}" for pause in self.by_rank or (self.seconds,))
        where = "" if self.at == INPUT else f" before {self.at}"
        if self.probability * self.longest:
            share = f" in {self.probability:.3g} of its batches" if self.probability < 1 else ""
            words.append(f"pauses {pauses} s{where}{share}")
        return " ".join(words)

    @property
    def varies(self) -> bool:
        """True if chance determines which batches have a pause."""
        return 0 < self.probability < 1 and self.longest > 0

    @property
    def longest(self) -> float:
        """The longest pause (s)."""
        return max((self.seconds, *self.by_rank))

    def check(self, ranks: int) -> None:
        """Raise ValueError for a rank that is none of ``ranks``, and for a list of another length."""
        if isinstance(self.rank, int) and not 0 <= self.rank < ranks:
            raise ValueError(f"rank {self.rank} is not among the {ranks} ranks of the case")
        if self.by_rank and len(self.by_rank) != ranks:
            raise ValueError(f"by_rank: has {len(self.by_rank)} pauses for {ranks} ranks")

    @property
    def paused(self) -> list[int]:
        """Ranks that are named and may pause; empty if all ranks are slow."""
        named = [self.rank, *(rank for rank, pause in enumerate(self.by_rank) if pause)]
        return [rank for rank in named if isinstance(rank, int) and self.probability * self.longest]

    def slows(self, rank: int) -> bool:
        """Return whether ``rank`` is slow."""
        return not isinstance(self.rank, int) or self.rank == rank

    @property
    def fields(self) -> dict[str, str | float]:
        """Fields of a record: a description, the rank, the factor, and length and probability of pauses."""
        return {
            "straggler": str(self),
            "straggler_rank": EVERY if self.rank == "" else self.rank,
            "straggler_factor": self.factor,
            "straggler_pause_seconds": self.longest,
            "straggler_pause_share": self.probability if self.longest else 0.0,
        }


class Delays:
    """Delays of a slow rank's pieces of work; the same ``rank``, ``seed`` and ``draw`` give the same pauses."""

    def __init__(self, straggler: Straggler, rank: int, seed: int, draw: int = 0) -> None:
        self._straggler = straggler
        self._seconds = straggler.by_rank[rank] if straggler.by_rank else straggler.seconds
        self._due = False
        self._random = random.Random(f"straggler {rank} {seed}{f' {draw}' if draw else ''}")

    def before(self, label: str) -> float:
        """Return the pause (s) before work called ``label``; to be called once for each piece."""
        how = self._straggler
        if label == INPUT:
            self._due = self._random.random() < how.probability
        due = self._due and how.at in (label, label.partition(" ")[0])
        self._due = self._due and not due
        return self._seconds if due else 0.0

    def after(self, took: float) -> float:
        """Return the delay (s) of work that takes ``took`` seconds without it."""
        return (self._straggler.factor - 1) * took


@dataclass(eq=False)
class Slowed(Wrapper[Comm]):
    """A communicator whose local work takes longer by ``delays``.

    The delay is slept where the work is done, so that messages progress as they do during work. Arithmetic of an
    exchange (:meth:`hpcdl.fabric.comm.Comm.add`) is not slowed.
    """

    _delays: Delays
    _clock: Clock = REAL

    async def compute(self, label: str, work: Callable[[], T]) -> T:
        if pause := self._delays.before(label):
            await self._comm.compute("pause", partial(self._clock.sleep, pause))

        def slow_work() -> T:
            begin = self._clock.now()
            result = work()
            self._clock.sleep(self._delays.after(self._clock.now() - begin))
            return result

        return await self._comm.compute(label, slow_work)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A rank, or several, that fails before one of its steps. ValueError: a step below 0, or no rank."""

    rank: int | tuple[int, ...]
    step: int

    def __post_init__(self) -> None:
        if self.step < 0:
            raise ValueError(f"step: must be at least 0, not {self.step}")
        if not self.ranks or not all(isinstance(rank, int) for rank in self.ranks):
            raise ValueError(f"rank: must be a number, or a list of some, not {self.rank!r}")

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that fail, at least one."""
        return self.rank if isinstance(self.rank, tuple) else (self.rank,)

    def comes(self, rank: int, step: int) -> bool:
        """Return True if ``rank`` fails before its step ``step``."""
        return rank in self.ranks and step == self.step

    def of(self, ranks: Iterable[int]) -> str:
        """Describe the failures of some of the ranks."""
        return ", ".join(f"rank {rank} at step {self.step}" for rank in ranks)

    def __str__(self) -> str:
        return self.of(self.ranks)


class RankFailed(Exception):  # noqa: N818 - named for the event
    """Raised by a program of a simulated rank: the rank fails, and all its programs end."""
