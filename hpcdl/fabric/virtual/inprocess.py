"""All ranks in one process: real data, rendezvous sends, a seeded choice of the next rank.

A program that relies on an MPI library's eager buffers stops here, with a report of the waiting ranks and peers.
"""

from __future__ import annotations

import random

from hpcdl.fabric.virtual.comm import VirtualComm
from hpcdl.fabric.virtual.world import World


class _Chance:
    """Operations take random times, some of them very long."""

    def __init__(self, ranks: int, seed: int) -> None:
        self._random = random.Random(seed)
        self.places = range(ranks)
        self.bytes_between_hosts = 0

    def message(self, now: float, _source: int, _dest: int, _size: int) -> float:
        return now + self._random.paretovariate(1)

    def native(self, now: float, _collective: str, _ranks: int, _size: int) -> float:
        return now + self._random.paretovariate(1)

    def apply(self, now: float, _rank: int, _label: str, _touched_bytes: int) -> float:
        return now

    def compute(self, now: float, _rank: int, _label: str) -> float:
        return now + self._random.paretovariate(1)


def in_process(ranks: int, seed: int = 0) -> World:
    """Return a world of ``ranks`` ranks whose interleaving is drawn from ``seed``."""
    return World(ranks, _Chance(ranks, seed), VirtualComm)
