"""How a rank waits: it looks again at once while it has a core for itself. Where it has not it offers the core to
others between looks, and sleeps in between when that has gone on for long, until a message comes if it can.

Who only waits and never sleeps takes the core from the peer it waits for, and from the kernel that carries the
message. Sleeps grow while nothing moves and are short again as soon as something has. A scheme's steps last alike,
so that about when the last one would be over now, looks are close.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LOOKS: Final = 200
"""In vain, before the processor is offered to others."""
FEW_LOOKS: Final = 10
"""The same where ranks outnumber cores."""
OFFERS: Final = 200
"""Looks in vain after those, where ranks outnumber cores, before the first sleep. It lasts 70 us or more, and
the message of a peer that has got the core may come sooner: with no offers a ring of four ranks on two cores took
four times as long for 256 KiB, and Downpour's workers there had six tenths of the throughput."""

LISTENS: Final = 100
"""Sleeps after those that a message may end; the ones that follow are plain, for a long message comes in pieces,
each of which would end one, and so would a queue that nobody empties. On 16 hosts of 100 Mbit/s on two cores
``ring`` and ``halving_doubling`` took 1.06 and 1.08 times what formulas say of 1 MiB with plain ones, 0.02 less
with these."""

LEAST: Final = 20e-6
"""Seconds of a first sleep; the kernel adds its timers' slack, 50 us."""
MOST_PER_RANK: Final = 40e-6
"""Seconds that sleeps grow to, times the ranks that share a core: looks of all take a quarter of it. With 200 us
for two ranks a core the workers of a server on the same cores had three quarters of the throughput they have."""
MOST: Final = 1e-3
"""Seconds that sleeps never exceed: a scheme has tens of dependent messages a step."""
MOST_AT_WORK: Final = 3e-3
"""The same for pauses while the rank's own work is done, of which each look takes some: with a third of it NiN's
layer-wise steps on two emulated hosts that share two cores took 1.09 to 1.23 times as long as without messages,
with this 1.10. Sockets hold what comes meanwhile."""

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Place:
    """Where a rank runs: emulated hosts and containers are one machine if one kernel schedules them."""

    machine: str
    cores: frozenset[int]
    """Those it may use."""

    def ranks_per_core(self, places: Iterable[Place]) -> float:
        """Ranks at ``places``, this one among them, that want these cores, for each of them."""
        rivals = sum(other.machine == self.machine and bool(other.cores & self.cores) for other in places)
        return rivals / len(self.cores)


def here() -> Place:
    """Where this process runs."""
    machine = _BOOT.read_text().strip() if _BOOT.exists() else os.uname().nodename
    return Place(machine, frozenset(os.sched_getaffinity(0)))


class Patience:
    """Waits of growing length; ``at_work``: what is paused for is the rank's own work.

    ``listen`` sleeps for so many seconds at most.
    """

    def __init__(
        self,
        ranks_per_core: float,
        *,
        at_work: bool = False,
        listen: Callable[[float], None] = sleep,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.crowded = ranks_per_core > 1
        """Whether ranks outnumber cores."""
        self._most = MOST_AT_WORK if at_work else min(MOST, max(LEAST, MOST_PER_RANK * ranks_per_core))
        self._looks = FEW_LOOKS if self.crowded else LOOKS
        self._at_work = at_work
        self._listen = listen
        self._clock = clock
        self._moved = clock()
        self._lasts = 0.0
        self._vain = 0
        self._pause = LEAST

    def moved(self) -> None:
        """Something has: what follows may come soon, or take as long as this has."""
        self._vain = 0
        self._pause = LEAST
        now = self._clock()
        self._lasts, self._moved = now - self._moved, now

    def pause(self) -> float:
        """How many seconds to leave others the core after a look in vain."""
        left = 0.0 if self._at_work else self._lasts - (self._clock() - self._moved)
        if left > LEAST:
            return min(left / 2, self._most)
        now = self._pause
        self._pause = min(1.5 * now, self._most)
        return now

    def wait(self) -> None:
        """Let time pass after a look in vain: none at first, then as little as others allow."""
        self._vain += 1
        beyond = self._vain - self._looks
        if beyond <= 0:
            return
        if not self.crowded or beyond <= OFFERS:
            os.sched_yield()
        elif beyond <= OFFERS + LISTENS:
            self._listen(self.pause())
        else:
            sleep(self.pause())
