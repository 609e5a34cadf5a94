"""Virtual time over a :class:`hpcdl.fabric.network.Network`: the same programs, no machine needed.

Payloads may be real, or size-only (:func:`hpcdl.fabric.comm.phantom`), which cost no memory and no copying.
A message starts when both ends have asked for it and both ports are free, in the order of the asking; one that is
asked for later goes first where it is over before a port's next message, which waits for its other port, begins.
"""

from __future__ import annotations

from math import ceil, inf, log2
from typing import TYPE_CHECKING

from hpcdl.fabric.cooperative import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcdl.fabric.comm import Event
    from hpcdl.fabric.network import Network


class _Port:
    """One end of a link, busy with one message at a time."""

    __slots__ = ("end", "gaps")

    def __init__(self) -> None:
        self.end = 0.0
        """From here on it is free."""
        self.gaps: list[tuple[float, float]] = []
        """So it is between these moments, in order: its next message waits for its other port."""

    def take(self, now: float, begin: float, end: float) -> None:
        """Be busy from ``begin`` to ``end``."""
        free = [*self.gaps, (self.end, max(self.end, end))]
        cut = [(opens, closes) if begin >= closes or end <= opens else (opens, begin) for opens, closes in free]
        cut += [(end, closes) for opens, closes in free if opens <= begin < closes]
        self.gaps = sorted((opens, closes) for opens, closes in cut if max(opens, now) < closes)
        self.end = max(self.end, end)


def _first_moment(now: float, takes: float, sending: _Port, receiving: _Port) -> float:
    """From when on both ports are free for long enough."""
    enough = takes * (1 - 1e-9)  # what fits but for rounding fits
    free = [[*port.gaps, (port.end, inf)] for port in (sending, receiving)]
    moments = (max(now, opens) for opens, _ in sorted(free[0] + free[1]))
    return next(
        moment
        for moment in moments
        if all(any(opens <= moment <= closes - enough for opens, closes in spans) for spans in free)
    )


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
        self._sending = [_Port() for _ in range(hosts + ranks)]
        self._receiving = [_Port() for _ in range(hosts + ranks)]
        self._processor = [0.0] * ranks

    def message(self, now: float, source: int, dest: int, size: int) -> float:
        link = self._link
        out, into = self._host[source], self._host[dest]
        if out == into:
            link = self._inside
            out, into = self._hosts + source, self._hosts + dest
        sending, receiving = self._sending[out], self._receiving[into]
        takes = link.alpha + size * link.beta
        if sending.end <= now and receiving.end <= now:
            sending.end = receiving.end = end = now + takes
            return end
        begin = _first_moment(now, takes, sending, receiving)
        sending.take(now, begin, begin + takes)
        receiving.take(now, begin, begin + takes)
        return begin + takes

    def native(self, now: float, collective: str, ranks: int, size: int) -> float:
        """The better of recursive doubling and Rabenseifner's algorithm, which is what libraries choose from.

        Splitting takes no time: programs do it once, and what is asked for is how long they take after that.
        """
        if collective == "split":
            return now
        steps = ceil(log2(ranks))
        link = self._network.link
        if collective == "barrier":
            return now + steps * link.alpha
        share = size * (ranks - 1) / ranks
        doubling = steps * (link.alpha + size * (link.beta + self._network.gamma))
        rabenseifner = 2 * steps * link.alpha + share * (2 * link.beta + self._network.gamma)
        return now + (rabenseifner if collective == "reduce_scatter allgather" else min(doubling, rabenseifner))

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
