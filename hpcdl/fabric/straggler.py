"""A rank that is slower than the others: by a factor, or because it pauses now and then."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hpcdl.fabric.comm import INPUT, PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcdl.fabric.comm import Comm

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """Who is slow, and how: its work takes ``factor`` times as long, or a batch begins with a pause.

    A pause of ``seconds`` comes with ``probability``. ValueError: numbers that make no straggler.
    """

    rank: int
    factor: float = 1.0
    probability: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise ValueError(f"factor: must be at least 1, not {self.factor}")
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability: must be between 0 and 1, not {self.probability}")
        if self.seconds < 0:
            raise ValueError(f"seconds: must be at least 0, not {self.seconds}")
        if self.factor == 1 and not self.probability * self.seconds:
            raise ValueError("give a factor of more than 1, or probability and seconds of its pauses")

    def __str__(self) -> str:
        words = [f"rank {self.rank}"]
        words += [f"{self.factor:g}x slower"] if self.factor > 1 else []
        words += (
            [f"pauses {self.seconds:g} s in {self.probability:.3g} of its batches"] if self.probability else []
        )
        return " ".join(words)

    @property
    def fields(self) -> dict[str, str | float]:
        """What a record says of it: in words, how many times as slow, and a pause of how long how often."""
        return {
            "straggler": str(self),
            "straggler_factor": self.factor,
            "straggler_pause_seconds": self.seconds,
            "straggler_pause_share": self.probability,
        }


class Delays:
    """What a straggler loses, piece of work by piece of work; the same pauses for the same ``seed``."""

    def __init__(self, straggler: Straggler, seed: int) -> None:
        self._straggler = straggler
        self._random = random.Random(f"straggler {straggler.rank} {seed}")

    def before(self, label: str) -> float:
        """Seconds of the pause before work called ``label``; call it once for each piece."""
        how = self._straggler
        return how.seconds if label == INPUT and self._random.random() < how.probability else 0.0

    def after(self, took: float) -> float:
        """Seconds lost by work that would have taken ``took``."""
        return (self._straggler.factor - 1) * took


class _Slowed:
    def __init__(
        self,
        comm: Comm,
        delays: Delays,
        *,
        clock: Callable[[], float] = perf_counter,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._comm = comm
        self._delays = delays
        self._clock = clock
        self._pause = pause

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    async def compute(self, label: str, work: Callable[[], T]) -> T:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        if pause := self._delays.before(label):
            await self._comm.compute(PAUSE, partial(self._pause, pause))

        def slow_work() -> T:
            begin = self._clock()
            result = work()
            self._pause(self._delays.after(self._clock() - begin))
            return result

        return await self._comm.compute(label, slow_work)

    async def survivors(self) -> Comm:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        return slowed(await self._comm.survivors(), self._delays, clock=self._clock, pause=self._pause)

    async def split(self, color: int, key: int = 0) -> Comm:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        return slowed(await self._comm.split(color, key), self._delays, clock=self._clock, pause=self._pause)


def slowed(
    comm: Comm,
    delays: Delays,
    *,
    clock: Callable[[], float] = perf_counter,
    pause: Callable[[float], None] = sleep,
) -> Comm:
    """Return ``comm`` with local work that takes longer by ``delays``; all else is the communicator's own.

    The loss is slept through where the work is done, so that messages move meanwhile as they do during work, and
    during pauses always.
    Reductions (:meth:`hpcdl.fabric.comm.Comm.add`) belong to the exchange and are not slowed.
    """
    return cast("Comm", _Slowed(comm, delays, clock=clock, pause=pause))
