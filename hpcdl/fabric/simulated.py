"""Virtual time over a :class:`hpcdl.fabric.network.Network`: the same programs, no machine needed.

Payloads may be real, or size-only (:func:`hpcdl.fabric.comm.phantom`), which cost no memory and no copying.
A message starts when both ends have asked for it and both ports are free, in the order of the asking; one that is
asked for later goes first where it is over before a port's next message, which waits for its other port, begins.
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf
from typing import TYPE_CHECKING, Final

from hpcdl.fabric.collectives import seconds
from hpcdl.fabric.cooperative import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcdl.fabric.comm import Event
    from hpcdl.fabric.network import Network


ENOUGH: Final = 1 - 1e-9
"""Of a message's time: what fits but for rounding fits."""


class _Port:
    """One end of a link, busy with one message at a time."""

    __slots__ = ("end", "gaps", "least")

    def __init__(self, least: float) -> None:
        self.end = 0.0
        """From here on it is free."""
        self.gaps: list[tuple[float, float]] = []
        """So it is between these moments, in order: its next message waits for its other port."""
        self.least = least * ENOUGH
        """Seconds below which no message fits into a gap, which is then none."""

    def take(self, now: float, begin: float, end: float) -> None:
        """Be busy from ``begin`` to ``end``; forget what is over ``now``."""
        gaps = self.gaps
        if begin >= self.end:
            if begin - self.end > self.least:
                gaps.append((self.end, begin))
        else:
            place = bisect_right(gaps, (begin, inf)) - 1
            opens, closes = gaps[place]
            parts = (opens, begin), (end, closes)
            gaps[place : place + 1] = [gap for gap in parts if gap[1] - gap[0] > self.least]
        self.end = max(self.end, end)
        if gaps and gaps[0][1] <= now:
            self.gaps = [gap for gap in gaps if gap[1] > now]


def _first_moment(now: float, takes: float, sending: _Port, receiving: _Port) -> float:
    """From when on both ports are free for long enough."""
    enough = takes * ENOUGH
    spans = [*sending.gaps, (sending.end, inf)], [*receiving.gaps, (receiving.end, inf)]
    start = max(now, spans[0][0][0], spans[1][0][0])
    one, other = (iter(free[max(bisect_right(free, (start, inf)) - 1, 0) :]) for free in spans)
    (opens, closes), (opens_too, closes_too) = next(one), next(other)
    while True:
        moment = max(now, opens, opens_too)
        if moment <= min(closes, closes_too) - enough:
            return moment
        if closes < closes_too:
            opens, closes = next(one)
        else:
            opens_too, closes_too = next(other)


class _VirtualTime:
    def __init__(self, ranks: int, network: Network, compute: Callable[[int, str], float]) -> None:
        self._host = [network.host(rank) for rank in range(ranks)]
        hosts = max(self._host) + 1
        self._slow = network.slow
        self._network = network
        self._link = network.link
        self._inside = network.inside
        self._compute = compute
        # ports 0..hosts-1 lead to the network, the others to a rank's neighbours on its host
        self._hosts = hosts
        least = [network.link.alpha] * hosts + [network.inside.alpha] * ranks
        self._sending = list(map(_Port, least))
        self._receiving = list(map(_Port, least))
        self._processor = [0.0] * ranks

    def message(self, now: float, source: int, dest: int, size: int) -> float:
        out, into = self._host[source], self._host[dest]
        if out == into:
            takes = self._inside.alpha + size * self._inside.beta
            out, into = self._hosts + source, self._hosts + dest
        else:
            share = min(self._slow.get(out, 1.0), self._slow.get(into, 1.0)) if self._slow else 1.0
            takes = self._link.alpha + size * self._link.beta / share
        sending, receiving = self._sending[out], self._receiving[into]
        if sending.end <= now and receiving.end <= now:
            sending.end = receiving.end = end = now + takes
            return end
        begin = _first_moment(now, takes, sending, receiving)
        sending.take(now, begin, begin + takes)
        receiving.take(now, begin, begin + takes)
        return begin + takes

    def native(self, now: float, collective: str, ranks: int, size: int) -> float:
        return now + seconds(collective, ranks, size, self._network)

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
