"""Places of hosts in a topology, and the links that a message crosses, with their bandwidths."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from itertools import permutations
from typing import Final

from hpcdl.fabric.network import Network

NO_TIME: Final = 1e-30
"""Seconds per byte that are as good as none."""


class Wiring:
    """Links of a network with a topology, numbered as they are first used."""

    def __init__(self, network: Network, ranks: int) -> None:
        """Raises ValueError for more hosts than places, an unknown slow link, and a failed link on a route."""
        if network.topology is None:
            raise ValueError(f"network {network.name!r} has no topology")
        self._network, self._topology, self._site = network, network.topology, network.site
        self._host = [network.host(rank) for rank in range(ranks)]
        self._place = self._site.place(self._topology, max(self._host) + 1)
        self._slow = self._site.slow or {}
        for link in self._slow:
            if link not in (links := self._topology.links):
                close = [*get_close_matches(link, links, n=1), *links, "none, as it has no links"]
                raise ValueError(f"slow: no link {link!r}; did you mean {close[0]!r}?")
        if failed := {link for link, share in self._slow.items() if not share}:
            places = dict(enumerate(self._place.tolist()))
            cut = [pair for pair in permutations(places, 2)
                   if not failed.isdisjoint(self._topology.route(places[pair[0]], places[pair[1]]))]  # fmt: skip
            if cut:
                pairs = ", ".join(f"host {one} to {other}" for one, other in cut[:3])
                more = f" and {len(cut) - 3} other pairs" if len(cut) > 3 else ""
                raise ValueError(f"slow: no route from {pairs}{more}: failed links: {', '.join(sorted(failed))}")
        self._numbers: dict[str, int] = {}
        self.bandwidths: list[float] = []
        """Of each link used so far, bytes per second."""
        self.route = cache(self._route)

    def _route(self, source: int, dest: int) -> tuple[float, list[int]]:
        """Return the latency (s) of messages between two ranks, and the numbers of their links."""
        network, site = self._network, self._site
        one, other = self._host[source], self._host[dest]
        if one == other:
            link = network.inside
            ends = ((f"rank {source} to its host", 1.0), (f"rank {dest} from its host", 1.0))
            return link.alpha, self._numbered(ends, link.beta)
        port = (dest - source) % len(self._host) % site.ports
        crossed = [
            (name, self._topology.links[name] * (1 - site.background) * self._slow.get(name, 1.0))
            for name in self._topology.route(int(self._place[one]), int(self._place[other]))
        ]
        ends = (
            (f"host {one} port {port} out", network.slow.get(one, 1.0)),
            (f"host {other} port {port} in", network.slow.get(other, 1.0)),
        )
        latency = network.link.alpha + len(crossed) * site.hop_seconds
        return latency, self._numbered([ends[0], *crossed, ends[1]], network.link.beta)

    def _numbered(self, links: Sequence[tuple[str, float]], beta: float) -> list[int]:
        for name, share in links:
            if name not in self._numbers:
                self._numbers[name] = len(self.bandwidths)
                self.bandwidths.append(share / max(beta, NO_TIME))
        return [self._numbers[name] for name, _ in links]
