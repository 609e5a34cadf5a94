"""Messages under way on a cluster with a topology: they share links fairly.

After its latency a message is a flow over all links of its route at once. Rates are max-min fair: none can rise
without one that is no higher falling (Bertsekas and Gallager 1992, section 6.5.2). They change when a flow begins
or ends. This is the fluid model of SimGrid (Casanova et al. 2014), without TCP's corrections.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, TypeAlias

from hpcdl.fabric.network import Wiring
from hpcdl.fabric.task import AnyTask

Ends: TypeAlias = tuple[AnyTask, AnyTask]
"""Tasks that receive and send a message."""

ROUNDING: Final = 1e-12
"""Relative difference of two moments that are one but for rounding."""


def fair_shares(routes: Sequence[Sequence[int]], bandwidths: Sequence[float]) -> list[float]:
    """Return the max-min fair rate of each flow by progressive filling; routes hold indices of ``bandwidths``.

    Links fill up, the one with the least share for each of its flows first; its flows keep this rate. The share of
    a link never falls meanwhile, so a link whose share has risen goes back into the heap.
    """
    crossing: dict[int, list[int]] = {}
    for flow, route in enumerate(routes):
        for link in route:
            crossing.setdefault(link, []).append(flow)
    room = {link: bandwidths[link] for link in crossing}
    flows = {link: len(through) for link, through in crossing.items()}
    rates = [0.0] * len(routes)
    shares = [(room[link] / count, link) for link, count in flows.items()]
    heapify(shares)
    while shares:
        share, link = heappop(shares)
        count = flows[link]
        if not count:
            continue
        if (risen := room[link] / count) > share:
            heappush(shares, (risen, link))
            continue
        for flow in crossing[link]:
            if not rates[flow]:
                rates[flow] = share
                for other in routes[flow]:
                    room[other] -= share
                    flows[other] -= 1
    return rates


@dataclass(slots=True, eq=False)
class _Flow:
    left: float
    """Bytes at :attr:`since`."""
    route: Sequence[int]
    ends: Ends
    number: int = 0
    """In the order of entering the links."""
    rate: float = 0.0
    since: float = 0.0
    over: float = inf
    """Moment of the last byte at this rate."""


class Flows:
    """Messages under way; each carries an object that comes back when it is over."""

    def __init__(self, wiring: Wiring, ranks: int, overhead: float) -> None:
        """``overhead``: seconds for which a message occupies both its ranks before it leaves."""
        self._wiring = wiring
        self._overhead = overhead
        self._occupied = [0.0] * ranks
        self._entering: list[tuple[float, int, _Flow]] = []
        self._ending: list[tuple[float, int, _Flow]] = []
        """Heap; entries of flows whose rate has changed since are out of date."""
        self._sent = self._entered = 0
        self._on: dict[int, set[_Flow]] = {}
        """Flows of each link."""
        self.link_bytes: dict[int, int] = {}
        """Bytes of all messages so far over each link."""
        self.next = inf
        """When rates change next; infinity if nothing is under way."""

    def send(self, now: float, source: int, dest: int, size: int, ends: Ends) -> None:
        """Begin a message of ``size`` bytes; :meth:`advance` returns ``ends`` when it is over."""
        latency, route = self._wiring.route(source, dest)
        latency += self._wiring.extra_seconds(source, dest, size)
        if self._overhead:
            now = max(now, self._occupied[source], self._occupied[dest]) + self._overhead
            self._occupied[source] = self._occupied[dest] = now
        for link in route:
            self.link_bytes[link] = self.link_bytes.get(link, 0) + size
        self._sent += 1
        heappush(self._entering, (now + latency, self._sent, _Flow(float(size), route, ends)))
        self.next = min(self.next, now + latency)

    @property
    def global_bytes(self) -> int:
        """Bytes of all messages so far over links between groups, see :class:`hpcdl.fabric.network.Topology`."""
        return self._wiring.global_bytes(self.link_bytes)

    def advance(self, moment: float) -> list[Ends]:
        """Let time pass until ``moment``, which is :attr:`next`; return the ends of messages that are over."""
        until = moment + ROUNDING * moment
        done, changed = list[_Flow](), set[int]()
        while self._ending and self._ending[0][0] <= until:
            over, _, flow = heappop(self._ending)
            if flow.over == over:
                done.append(flow)
                flow.over = inf  # another entry may have the same moment
                changed.update(flow.route)
                for link in flow.route:
                    self._on[link].remove(flow)
        done.sort(key=lambda flow: flow.number)
        while self._entering and self._entering[0][0] <= until:
            _, _, flow = heappop(self._entering)
            if flow.left:
                changed.update(flow.route)
                self._entered += 1
                flow.number, flow.since = self._entered, moment
                for link in flow.route:
                    self._on.setdefault(link, set()).add(flow)
            else:
                done.append(flow)
        self._share(moment, changed)
        while self._ending and self._ending[0][2].over != self._ending[0][0]:
            heappop(self._ending)
        self.next = min(queue[0][0] if queue else inf for queue in (self._entering, self._ending))
        return [flow.ends for flow in done]

    def _share(self, moment: float, changed: Iterable[int]) -> None:
        """Set the rates of all flows that share links, directly or through others, with the links ``changed``."""
        # Rates are max-min fair: a change reaches only flows that share a link with it, directly or by others.
        # All other rates, and the moments in the heap, stay valid.
        reached, links = set[_Flow](), set(changed)
        beyond = list(links)
        while beyond:
            for flow in self._on[beyond.pop()]:
                if flow not in reached:
                    reached.add(flow)
                    new = [link for link in flow.route if link not in links]
                    links.update(new)
                    beyond += new
        flows = sorted(reached, key=lambda flow: flow.number)
        for flow, rate in zip(flows, fair_shares([f.route for f in flows], self._wiring.bandwidths), strict=True):
            if rate != flow.rate:
                flow.left -= flow.rate * (moment - flow.since)
                flow.since, flow.rate = moment, rate
                flow.over = moment + flow.left / rate
                heappush(self._ending, (flow.over, flow.number, flow))
