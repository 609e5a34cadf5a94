"""Virtual time over a :class:`hpcdl.fabric.network.Network`: the same programs, no machine needed.

Payloads may be real, or size-only (:func:`hpcdl.fabric.comm.phantom`), which cost no memory and no copying.
A message starts when both ends have asked for it and both ports are free, in the order of the asking.
"""

from __future__ import annotations

from math import ceil, log2
from typing import TYPE_CHECKING

from hpcdl.fabric.cooperative import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcdl.fabric.comm import Event
    from hpcdl.fabric.network import Network


class _VirtualTime:
    def __init__(self, ranks: int, network: Network, compute: Callable[[int, str], float]) -> None:
        hosts = (ranks - 1) // network.ranks_per_host + 1
        self._host = [rank // network.ranks_per_host for rank in range(ranks)]
        self._network = network
        self._link = network.link
        self._inside = network.inside
        self._compute = compute
        # ports 0..hosts-1 lead to the network, the others to a rank's neighbours on its host
        self._hosts = hosts
        self._sending = [0.0] * (hosts + ranks)
        self._receiving = [0.0] * (hosts + ranks)
        self._processor = [0.0] * ranks

    def message(self, now: float, source: int, dest: int, size: int) -> float:
        link = self._link
        out, into = self._host[source], self._host[dest]
        if out == into:
            link = self._inside
            out, into = self._hosts + source, self._hosts + dest
        now = max(now, self._sending[out])
        now = max(now, self._receiving[into])
        end = now + link.alpha + size * link.beta
        self._sending[out] = self._receiving[into] = end
        return end

    def native(self, now: float, collective: str, ranks: int, size: int) -> float:
        """The better of recursive doubling and Rabenseifner's algorithm, which is what libraries choose from."""
        steps = ceil(log2(ranks))
        link = self._network.link
        if collective != "allreduce":
            return now + steps * link.alpha
        share = size * (ranks - 1) / ranks
        doubling = steps * (link.alpha + size * (link.beta + self._network.gamma))
        rabenseifner = 2 * steps * link.alpha + share * (2 * link.beta + self._network.gamma)
        return now + min(doubling, rabenseifner)

    def add(self, now: float, rank: int, size: int) -> float:
        end = max(now, self._processor[rank]) + size * self._network.gamma
        self._processor[rank] = end
        return end

    def compute(self, now: float, rank: int, label: str) -> float:
        end = max(now, self._processor[rank]) + self._compute(rank, label)
        self._processor[rank] = end
        return end


def simulated(
    ranks: int,
    network: Network,
    *,
    compute: Callable[[int, str], float] = lambda _rank, _label: 0.0,
    events: list[list[Event]] | None = None,
) -> World:
    """A world of ``ranks`` ranks on ``network``; ``world.now`` is the virtual time in seconds.

    ``compute(rank, label)`` gives the seconds that a piece of local work takes; a straggler is a rank for which
    it gives more.
    """
    return World(ranks, _VirtualTime(ranks, network, compute), events)
