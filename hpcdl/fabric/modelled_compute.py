"""Modelled compute time on real ranks: work that is shorter than its model is followed by a sleep."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter, sleep
from typing import Final, NamedTuple, TypeVar

from hpcdl.fabric.comm import Comm, Wrapper

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
