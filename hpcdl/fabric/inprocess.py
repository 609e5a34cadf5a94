"""All ranks in one process: real data, rendezvous sends, a seeded choice of who runs next.

The interpreter for tests. A send returns only when its receive has taken the data, so a program that relies on
an MPI library's eager buffers stops here, with a report of who waits for whom. The same seed gives the same
interleaving, of asynchronous programs too; another seed gives another.
"""

from __future__ import annotations

import random

from hpcdl.fabric.cooperative import CooperativeComm
from hpcdl.fabric.world import World


class _Chance:
    """Everything takes a random time, now and then a very long one."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def message(self, now: float, _source: int, _dest: int, _size: int) -> float:
        return now + self._random.paretovariate(1)

    def native(self, now: float, _collective: str, _ranks: int, _size: int) -> float:
        return now + self._random.paretovariate(1)

    def add(self, now: float, _rank: int, _size: int) -> float:
        return now

    def compute(self, now: float, _rank: int, _label: str) -> float:
        return now + self._random.paretovariate(1)


def in_process(ranks: int, seed: int = 0) -> World:
    """A world of ``ranks`` ranks that interleave as ``seed`` says."""
    return World(ranks, _Chance(seed), CooperativeComm)
