"""The two clocks of a world: chance, for tests, and virtual time over a :class:`hpcdl.fabric.network.Network`.

In process, payloads are real, sends wait for their receiver, and the next rank is a seeded choice. A program that
relies on an MPI library's eager buffers stops here, with a report of the waiting ranks and peers.

In virtual time, payloads may be real, or size-only (:func:`hpcdl.fabric.vectors.phantom`), without memory and
copies. A message starts when both ends have asked for it and both ports are free, in the order of the asking; at
once, in the order of a rank's tasks and of a host's ranks. One that is asked for later goes first where it is over
before a port's next message, which waits for its other port, begins. If only its overhead occupies the ports, the
latency of a message whose sender was ready earlier has passed meanwhile. On a network with a topology messages
share links instead: :mod:`hpcdl.fabric.virtual.flows`.
"""

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from heapq import heappop, heappush
from itertools import chain, count, repeat
from math import inf
from types import MappingProxyType
from typing import Final

from hpcdl.fabric.comm import Event
from hpcdl.fabric.network import Network, Wiring
from hpcdl.fabric.virtual.comm import VirtualComm, seconds
from hpcdl.fabric.virtual.flows import Flows
from hpcdl.fabric.virtual.shifts import Shifts
from hpcdl.fabric.virtual.world import World


class _Chance:
    """Operations take random times, some of them very long."""

    def __init__(self, ranks: int, seed: int) -> None:
        self._random = random.Random(seed)
        self.places = range(ranks)
        self.bytes_between_hosts = 0

    def message(self, now: float, _source: int, _dest: int, _size: int, _asked: float) -> float:
        return now + self._random.paretovariate(1)

    def native(self, now: float, _collective: str, _members: Sequence[int], _size: int) -> float:
        return now + self._random.paretovariate(1)

    def apply(self, now: float, _rank: int, _label: str, _touched_bytes: int) -> float:
        return now

    def compute(self, now: float, _rank: int, _label: str) -> float:
        return now + self._random.paretovariate(1)


def in_process(ranks: int, seed: int = 0) -> World:
    """Return a world of ``ranks`` ranks whose interleaving is drawn from ``seed``."""
    return World(ranks, _Chance(ranks, seed), VirtualComm)


ENOUGH: Final = 1 - 1e-9
"""Share of a message's time that a gap must have: the rest is rounding."""


class _Port:
    """One end of a link. It carries one message at a time; between two it is free while the later one waits."""

    __slots__ = ("free", "least", "never", "short")

    def __init__(self, least: float) -> None:
        """``least``: seconds of an empty message."""
        self.free: list[float] = [0.0, inf]
        """It opens, closes, opens, ..., opens, and closes at infinity."""
        self.short: list[tuple[float, float]] = []
        """Heap of (closes, opens) of gaps too short for all messages so far: most gaps of a busy port."""
        self.least = inf
        """The least that has ever been enough."""
        self.never = least * ENOUGH
        """Gaps up to this are too short for any message."""

    def admit(self, enough: float) -> None:
        """Look at gaps of ``enough`` too."""
        if enough < self.least:
            self.least = enough
            self.free = sorted([*self.free, *chain.from_iterable(self.short)])
            self.short.clear()

    def take(self, at: int, begin: float, end: float) -> None:
        """Be busy from ``begin`` to ``end``, within the gap at ``at``."""
        free = self.free
        left: list[float] = []
        for opens, closes in ((free[at], begin), (end, free[at + 1])):
            if closes - opens > self.never:
                if opens <= closes - self.least:
                    left += opens, closes
                else:
                    heappush(self.short, (closes, opens))
        free[at : at + 2] = left

    def forget(self, now: float) -> None:
        """Forget gaps that are over."""
        if self.free[1] <= now:
            del self.free[: bisect_right(self.free, now) & ~1]
        while self.short and self.short[0][0] <= now:
            heappop(self.short)


def _first_moment(now: float, enough: float, port: _Port, other: _Port) -> tuple[float, int, int]:
    """From when on both ports are free for long enough, and where in each of them that is."""
    sending, receiving = port.free, other.free
    moment = max(now, sending[0], receiving[0])
    at = bisect_right(sending, moment) - 1 & ~1
    at_too = bisect_right(receiving, moment) - 1 & ~1
    latest = sending[at + 1] - enough
    latest_too = receiving[at_too + 1] - enough
    # where hundreds of messages wait at a port a simulation does little else; max() would take as long again
    while moment > latest or moment > latest_too:
        while moment > latest:
            at += 2
            latest = sending[at + 1] - enough
            if sending[at] > moment:  # noqa: PLR1730 - see above
                moment = sending[at]
        while moment > latest_too:
            at_too += 2
            latest_too = receiving[at_too + 1] - enough
            if receiving[at_too] > moment:  # noqa: PLR1730 - see above
                moment = receiving[at_too]
    return moment, at, at_too


class _VirtualTime:
    def __init__(
        self,
        ranks: int,
        network: Network,
        compute: Callable[[int, str], float],
        costs: Mapping[str, float],
        shifts: Shifts | None,
    ) -> None:
        self._host = [network.host(rank) for rank in range(ranks)]
        hosts = max(self._host) + 1
        # on a single host no rank shares a port
        counts = [count() for _ in range(hosts)] if hosts > 1 else [repeat(0)]
        self.places = [next(counts[host]) for host in self._host]

        self._network = network
        self._gamma = network.gamma
        self._link, self._inside = network.link, network.inside
        self._has_distances = bool(network.link.distance_alpha or network.link.distance_beta)
        self._seconds = cache(self._between_hosts)
        self._compute = compute
        self._costs = dict(costs)
        # ports 0..hosts-1 lead to the network, the others to a rank's neighbours on its host
        self._hosts = hosts
        self._library = [(-1, 0.0)] * hosts
        """Of each host, a rank in its last native collective between hosts, and the end of that."""
        self.bytes_between_hosts = 0
        self._sending, self._receiving = (_ports(ranks, hosts, network, shifts) for _ in range(2))
        # arithmetic of an exchange does not wait for the end of a layer: the message thread does it
        self._working = [0.0] * ranks
        self._applying = [0.0] * ranks

    def message(self, now: float, source: int, dest: int, size: int, asked: float) -> float:
        out, into = self._host[source], self._host[dest]
        if out == into:
            takes = busy = self._inside.seconds(size)
            out, into = self._hosts + source, self._hosts + dest
        else:
            self.bytes_between_hosts += size
            distance = self._network.distance(out, into, self._hosts) if self._has_distances else 1
            takes, busy = self._seconds(size, distance)
        sending, receiving = self._sending[out], self._receiving[into]
        free, other = sending.free, receiving.free
        if free[-2] <= now and other[-2] <= now:
            free[-2] = other[-2] = end = now + busy
            return now + takes if asked >= now else max(end, asked + takes)
        enough = busy * ENOUGH
        # both ports are busy until one moment, without a gap before: most messages of equal ranks
        if free == other and len(free) == 2 and enough >= sending.least and enough >= receiving.least:
            begin = free[0]
            free[0] = other[0] = end = begin + busy
            return begin + takes if asked >= now else max(end, asked + takes)
        sending.admit(enough)
        receiving.admit(enough)
        begin, at, at_too = _first_moment(now, enough, sending, receiving)
        end = begin + busy
        sending.take(at, begin, end)
        receiving.take(at_too, begin, end)
        sending.forget(now)
        receiving.forget(now)
        return begin + takes if asked >= now else max(end, asked + takes)

    def _between_hosts(self, size: int, distance: int) -> tuple[float, float]:
        """Return how long a message takes, and for how long it occupies its ports (s)."""
        return self._link.seconds(size, distance), self._link.occupied(size, distance)

    def native(self, now: float, collective: str, members: Sequence[int], size: int) -> float:
        on_hosts = Counter(self._host[rank] for rank in members)
        # ranks of one host in different communicators take turns at its port to other hosts
        first = {self._host[rank]: rank for rank in reversed(members)} if len(on_hosts) > 1 else {}
        others = (self._library[host] for host, rank in first.items() if self._library[host][0] != rank)
        begin = max([now, *(over for _, over in others)])
        end = begin + seconds(collective, [*on_hosts.values()], size, self._network)
        for host, rank in first.items():
            self._library[host] = rank, end
        return end

    def apply(self, now: float, rank: int, label: str, touched_bytes: int) -> float:
        begin = self._applying[rank]
        if begin < now:  # noqa: PLR1730 - max() takes as long as the rest
            begin = now
        self._applying[rank] = end = begin + touched_bytes * self._costs.get(label, self._gamma)
        return end

    def compute(self, now: float, rank: int, label: str) -> float:
        end = max(now, self._working[rank]) + self._compute(rank, label)
        self._working[rank] = end
        return end


def _ports(ranks: int, hosts: int, network: Network, shifts: Shifts | None) -> list[_Port]:
    """Return the ports of all hosts, and of all ranks inside; those of representatives stand for the others."""
    outside, inside = ([_Port(link.occupied(0)) for _ in range(count)]
                       for link, count in ((network.link, hosts), (network.inside, ranks)))  # fmt: skip
    if shifts is None:
        return outside + inside
    return outside[:1] * hosts + [inside[shifts.shifted(rank, rank)[1]] for rank in range(ranks)]


def _no_time(_rank: int, label: str) -> float:
    raise ValueError(f"no time is known for work labelled {label!r}: this simulation models no local work")


def simulated(
    ranks: int,
    network: Network,
    *,
    compute: Callable[[int, str], float] = _no_time,
    costs: Mapping[str, float] = MappingProxyType({}),
    events: list[list[Event]] | None = None,
    shifts: Shifts | None = None,
) -> World:
    """Return a world of ``ranks`` ranks on ``network``; ``world.now`` is the virtual time in seconds.

    ``compute(rank, label)`` returns the time of a piece of local work (s), and raises ValueError for an unknown
    label; for a straggler it returns more. ``costs``: time of arithmetic between messages, by its label (s per
    byte that it touches); the network's gamma for other labels. ``shifts``: symmetry of program and network.
    """
    flows = None
    if network.topology is not None:
        flows = Flows(Wiring(network, ranks), ranks, network.site.overhead_seconds)
    clock = _VirtualTime(ranks, network, compute, costs, shifts)
    return World(ranks, clock, VirtualComm, events, flows, shifts)
