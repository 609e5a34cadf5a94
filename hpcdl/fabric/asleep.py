"""Work that takes the time it is said to: the rest of it is slept, and the core is free for others."""

from __future__ import annotations

from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcdl.fabric.comm import Comm

T = TypeVar("T")

TRIAL: Final = 1e-3
"""Seconds of a sleep by which oversleeping is measured."""
TRIALS: Final = 25


def oversleep(clock: Callable[[], float] = perf_counter, pause: Callable[[float], None] = sleep) -> float:
    """How many seconds a sleep lasts beyond what was asked, at the least: more is load, which comes and goes."""
    beyond = []
    for _ in range(TRIALS):
        begin = clock()
        pause(TRIAL)
        beyond.append(clock() - begin - TRIAL)
    return max(0.0, min(beyond))


def sleep_until(
    deadline: float,
    beyond: float,
    *,
    clock: Callable[[], float] = perf_counter,
    pause: Callable[[float], None] = sleep,
) -> None:
    """Sleep until the clock shows ``deadline``; sleeps last ``beyond`` seconds longer than asked, or more."""
    while (left := deadline - clock() - beyond) > 0:
        pause(left)


class _Asleep:
    def __init__(
        self,
        comm: Comm,
        seconds: Callable[[str], float],
        beyond: float,
        *,
        clock: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        self._comm = comm
        self._seconds = seconds
        self._beyond = beyond
        self._clock = clock
        self._pause = pause

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    async def compute(self, label: str, work: Callable[[], T]) -> T:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        seconds = self._seconds(label)
        if not seconds:
            return await self._comm.compute(label, work)

        def slow_work() -> T:
            deadline = self._clock() + seconds
            result = work()
            sleep_until(deadline, self._beyond, clock=self._clock, pause=self._pause)
            return result

        return await self._comm.compute(label, slow_work)


def asleep(
    comm: Comm,
    seconds: Callable[[str], float],
    beyond: float,
    *,
    clock: Callable[[], float] = perf_counter,
    pause: Callable[[float], None] = sleep,
) -> Comm:
    """Return ``comm`` whose local work takes ``seconds`` by its label, or longer if it does; all else is its own.

    Messages move during the sleep as they do during work. That sleeps last ``beyond`` seconds longer than asked is
    taken off; nothing spins, for there may be many ranks to a core.
    """
    wrapped = _Asleep(comm, seconds, beyond, clock=clock, pause=pause)
    return cast("Comm", wrapped)
