"""Modelled compute time on real ranks: work that is shorter than its model is followed by a sleep."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, sleep
from typing import Final, TypeVar

from hpcdl.fabric.comm import Comm
from hpcdl.fabric.wrapper import Wrapper

T = TypeVar("T")

TRIAL: Final = 1e-3
"""Sleep (s) by which :func:`oversleep` measures."""
TRIALS: Final = 25
"""Sleeps of one measurement."""


def oversleep(clock: Callable[[], float] = perf_counter, pause: Callable[[float], None] = sleep) -> float:
    """Return the least time (s) by which a sleep exceeds its argument; more than that is load of the machine."""
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
    """Sleep until ``deadline``; each sleep exceeds its argument by ``beyond`` seconds or more."""
    while (left := deadline - clock() - beyond) > 0:
        pause(left)


def accurate_sleep(
    clock: Callable[[], float] = perf_counter, pause: Callable[[float], None] = sleep
) -> Callable[[float], None]:
    """Return a function that sleeps as long as its argument (s), or longer under load.

    The kernel adds tens of microseconds to each sleep, :func:`oversleep`. A shorter time is spun.
    """
    beyond = oversleep(clock, pause)

    def accurate(seconds: float) -> None:
        deadline = clock() + seconds
        sleep_until(deadline, beyond, clock=clock, pause=pause)
        while clock() < deadline:
            pass

    return accurate


class ModelledCompute(Wrapper[Comm]):
    """A communicator whose local work takes ``seconds`` by its label, or longer if the work does.

    Messages progress during the sleep as they do during work. ``beyond`` is from :func:`oversleep`. Ranks do not
    spin, because several may share a core.
    """

    def __init__(
        self,
        comm: Comm,
        seconds: Callable[[str], float],
        beyond: float,
        *,
        clock: Callable[[], float] = perf_counter,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        super().__init__(comm)
        self._seconds = seconds
        self._beyond = beyond
        self._clock = clock
        self._pause = pause

    def _wrap(self, comm: Comm) -> ModelledCompute:
        return ModelledCompute(comm, self._seconds, self._beyond, clock=self._clock, pause=self._pause)

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
