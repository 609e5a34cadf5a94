"""Polling policy of a waiting rank: spin on an own core, yield and back off when oversubscribed.

A rank with its own core polls :data:`POLLS` times, then yields the core between polls. When ranks outnumber cores
it yields from the first poll on and sleeps between polls after :data:`POLLS`, because its peer may need the core.
Sleeps grow while no operation completes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Final

POLLS: Final = 200
"""Polls of the first stage: without a yield on an own core, without a sleep when oversubscribed."""
MIN_PAUSE: Final = 20e-6
"""First sleep (s); the kernel adds its timers' slack, 50 us."""
GROWTH: Final = 1.5
"""Ratio of a sleep to the one before it."""
MAX_PAUSE_IDLE: Final = 250e-6
"""Longest sleep (s): a scheme has tens of dependent messages a step."""
MAX_AT_WORK: Final = 3e-3
"""Longest pause (s) between polls during the rank's own computing, which each poll delays."""

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Place:
    """Machine and cores of a rank; emulated hosts and containers under one kernel are one machine."""

    machine: str
    cores: frozenset[int]
    """Those it may use."""

    def ranks_per_core(self, places: Iterable[Place]) -> float:
        """Return the number of ranks, among those at ``places``, per core of this rank."""
        rivals = sum(other.machine == self.machine and bool(other.cores & self.cores) for other in places)
        return rivals / len(self.cores)


def here() -> Place:
    """Return the machine and the cores of this process."""
    machine = _BOOT.read_text().strip() if _BOOT.exists() else os.uname().nodename
    return Place(machine, frozenset(os.sched_getaffinity(0)))


class Backoff:
    """Waits of growing length; ``at_work``: between polls during the rank's own computing."""

    def __init__(self, ranks_per_core: float, *, at_work: bool = False) -> None:
        self.oversubscribed = ranks_per_core > 1
        """True if ranks outnumber cores."""
        self._most = MAX_AT_WORK if at_work else MAX_PAUSE_IDLE
        self.reset()

    def reset(self) -> None:
        """Note that an operation has completed."""
        self._polls = 0
        self._pause = MIN_PAUSE

    def pause(self) -> float:
        """Return how long to sleep after an unsuccessful poll (s)."""
        now, self._pause = self._pause, min(GROWTH * self._pause, self._most)
        return now

    def wait(self) -> None:
        """Let time pass after an unsuccessful poll, by a yield or a sleep."""
        self._polls += 1
        # A rank that has a core spins, as a wake-up costs more than a short message. Where ranks outnumber cores a
        # spinning rank keeps the core from the rank that it waits for: it yields at once, and then sleeps.
        if self._polls > POLLS and self.oversubscribed:
            sleep(self.pause())
        elif self._polls > POLLS or self.oversubscribed:
            os.sched_yield()


def sleep_until(done: Callable[[], bool], limit: float = inf) -> bool:
    """Sleep until ``done``, at most ``limit`` s, and leave the core to others; return whether it is done."""
    deadline = monotonic() + limit
    pause = 1e-4
    while not done():
        if monotonic() > deadline:
            return False
        sleep(pause)
        pause = min(2 * pause, 0.02)
    return True
