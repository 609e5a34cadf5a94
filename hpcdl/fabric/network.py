"""Network cost model: Hockney's alpha-beta per link, ports per host, and gamma for the reduction.

A message of n bytes takes ``alpha + n * beta`` (Hockney 1994). Each host has one send port and one receive port,
and each is busy with one message at a time for that long, so that messages to one host queue: this is a parameter
server's incast. Ranks of one host use its ``inside`` link, one port pair per rank. With a topology, hosts are
joined by links that messages share, and ports are shared, too: ``Wiring``.

Messages that are asked for at once take turns in the order in which their ranks started them, equal on all hosts.
A real port shares its rate among the messages under way. Both take equally long if ports never idle.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from itertools import permutations
from math import inf, log2, prod
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from hpcdl.fabric.topologies.dragonfly import Dragonfly
from hpcdl.fabric.topologies.fat_tree import FatTree
from hpcdl.fabric.topologies.torus import Torus

GIGABIT: Final = 1e9 / 8
"""Bytes per second."""

EVERY_RANK: Final = 1 << 31
"""Value of ranks per host for one host that holds all ranks."""


SEGMENTS: Final = (0, 1 << 9, 1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 24)
"""Sizes of messages, in bytes, from which a further byte may cost more or less: libraries copy short messages,
announce long ones, and divide the longest among several ports."""


@dataclass(frozen=True)
class Link:
    """Costs of a message: ``alpha`` seconds if it is empty, and ``beta`` per byte (Hockney 1994).

    A message occupies a port at both ends all the time. With ``overhead``, the o of LogGP (Alexandrov et al.
    1995), it does so for ``overhead + bytes * beta``, and messages are under way at once for the rest.

    ``distance_alpha``, ``distance_beta``: seconds, and seconds per byte, for each doubling of the distance of the
    hosts. ``extra``: seconds per byte, on top of ``beta``, of the bytes in each of :data:`SEGMENTS`.
    """

    alpha: float
    beta: float
    overhead: float | None = None
    distance_alpha: float = 0.0
    distance_beta: float = 0.0
    extra: tuple[float, ...] = ()

    def seconds(self, size: float, distance: int = 1) -> float:
        """Return the time of a message of ``size`` bytes (s)."""
        time = self.alpha + size * self.beta + self.extra_seconds(size)
        if distance > 1:
            time += (self.distance_alpha + size * self.distance_beta) * log2(distance)
        return time

    def occupied(self, size: float, distance: int = 1) -> float:
        """Return for how long a message of ``size`` bytes occupies a port (s)."""
        return self.seconds(size, distance) if self.overhead is None else self.overhead + size * self.beta

    def extra_seconds(self, size: float) -> float:
        """Return the time of a message of ``size`` bytes beyond ``alpha + size * beta``, of near hosts (s)."""
        ends = (*SEGMENTS[1:], inf)
        pieces = zip(self.extra, SEGMENTS, ends, strict=bool(self.extra))
        return sum((min(size, end) - begin) * cost for cost, begin, end in pieces if size > begin)

    @property
    def is_plain(self) -> bool:
        """True if a message costs alpha and beta alone, as formulas have it."""
        return replace(self, alpha=0.0, beta=0.0) == Link(0.0, 0.0)


SHARED_MEMORY: Final = Link(alpha=0.5e-6, beta=1 / 10e9)
"""Between ranks of one host unless a network defines it: two copies at the speed of a server's memory."""


PLACEMENTS: Final = ("block", "cyclic", "random")


class Topology(Protocol):
    """A cluster's switches and links, without its hosts' ports."""

    @property
    def places(self) -> int:
        """Number of hosts that have a place, numbered switch by switch."""

    @property
    def block(self) -> int:
        """Number of hosts on one switch."""

    @property
    def links(self) -> Mapping[str, float]:
        """Bandwidth of each link, by that of a host's port."""

    def route(self, source: int, dest: int) -> Sequence[str]:
        """Return the links from one place to another, in order; none if they are on one switch."""

    def is_global(self, link: str) -> bool:
        """Return True for a link between groups of switches: of two that a message crosses, the first."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Settings that go with every topology.

    ``placement``: hosts take places one by one (block), from one switch after another (cyclic), or by ``seed``
    (random). ``ports``: of a host; a message to the rank d further on takes port d modulo their number, at both
    ends. ``hop_seconds``: latency of each link on the way; ``overhead_seconds``: for which a message occupies both
    its ranks before it leaves. ``background``: share of the links' bandwidth that others use. ``slow``: the share
    of its bandwidth that a link keeps, by its name; 0 if it has failed. Raises ValueError for values out of range.
    """

    placement: str = "block"
    seed: int = 0
    ports: int = 1
    hop_seconds: float = 0.0
    overhead_seconds: float = 0.0
    background: float = 0.0
    slow: dict[str, float] | None = None

    def __post_init__(self) -> None:
        if self.placement not in PLACEMENTS:
            raise ValueError(f"placement: must be {', '.join(PLACEMENTS)}, not {self.placement!r}")
        if self.ports < 1:
            raise ValueError(f"ports: must be at least 1, not {self.ports}")
        for name in ("hop_seconds", "overhead_seconds", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must be at least 0, not {getattr(self, name)}")
        if not 0 <= self.background < 1:
            raise ValueError(f"background: must be at least 0 and less than 1, not {self.background}")
        for link, share in (self.slow or {}).items():
            if type(share) not in {int, float} or not 0 <= share <= 1:
                raise ValueError(f"slow: {link!r}: share of its bandwidth must be from 0 to 1, not {share!r}")

    def place(self, topology: Topology, hosts: int) -> npt.NDArray[np.int64]:
        """Return the places of the first ``hosts`` hosts. Raises ValueError if there are too few."""
        places = np.arange(topology.places)
        if hosts > len(places):
            raise ValueError(f"{hosts} hosts are more than the topology's {len(places)}")
        if self.placement == "cyclic":
            places = places.reshape(-1, topology.block).T.ravel()
        if self.placement == "random":
            places = np.random.default_rng(self.seed).permutation(places)
        return places[:hosts]


@dataclass(frozen=True)
class Network:
    """A cluster of equal hosts, behind a non-blocking switch if it has no topology."""

    name: str
    link: Link
    source: str
    gamma: float = 1 / 10e9
    """Seconds per byte reduced: read two streams, write one, about 30 GB/s of one core's memory traffic."""
    inside: Link = SHARED_MEMORY
    ranks_per_host: int = 1
    """Ranks fill the hosts one by one, unless ``hosts`` lists their hosts."""
    hosts: tuple[int, ...] = ()
    """The host of each of the first ranks, numbered from 0; those beyond fill further hosts."""

    topology: Topology | None = None
    """Links between the hosts' ports; messages under way share them, see :mod:`hpcdl.fabric.virtual.flows`."""
    site: Site = field(default_factory=Site)
    """Places of the hosts, and more that goes with a topology."""
    grids: tuple[tuple[int, ...], ...] = ()
    """Sides of the tori, smallest first, whose smallest with enough places the hosts fill, the last side first."""

    def host(self, rank: int) -> int:
        """Return the host of a rank."""
        known = len(self.hosts)
        if rank < known:
            return self.hosts[rank]
        return max(self.hosts, default=-1) + 1 + (rank - known) // self.ranks_per_host

    def hosts_of(self, ranks: int) -> int:
        """Return the number of hosts of the first ``ranks`` ranks."""
        return len({self.host(rank) for rank in range(ranks)})

    def distance(self, host: int, other: int, hosts: int) -> int:
        """Return the distance of two of ``hosts`` hosts, at least 1: of their numbers, round the last one.

        On a torus it is the way along the side on which they are farthest apart.
        """
        grid = next((sides for sides in self.grids if prod(sides) >= hosts), (hosts,))
        away = (other - host) % hosts
        return max(min(_farthest(away, grid), _farthest(hosts - away, grid)), 1)

    def common_link(self, ranks: int) -> Link | None:
        """Return the link of all messages among the first ``ranks`` ranks; None if it is not one kind of link."""
        if self.topology is not None:
            return None
        hosts = self.hosts_of(ranks)
        return self.link if hosts == ranks else self.inside if hosts == 1 else None

    def ring_costs(self, ranks: int) -> tuple[float, float]:
        """Return alpha (s) and beta (s/byte) of the slowest messages of a ring of the first ``ranks`` ranks."""
        link = self.inside if self.hosts_of(ranks) == 1 else self.link
        return link.alpha, link.beta

    def on(self, ranks_per_host: int) -> Network:
        """Return this network with that many ranks on a host, numbered host by host."""
        if ranks_per_host < 1:
            raise ValueError(f"ranks_per_host must be at least 1, not {ranks_per_host}")
        return replace(self, ranks_per_host=ranks_per_host, hosts=())

    @property
    def is_one_host(self) -> bool:
        """True if all ranks, in any number, are on one host."""
        return self.ranks_per_host == EVERY_RANK


def _farthest(away: int, grid: Sequence[int]) -> int:
    """Return the longest way along a side of a torus between two places whose numbers are ``away`` apart."""
    longest = 0
    for side in reversed(grid):
        away, along = divmod(away, side)
        longest = max(longest, min(along, side - along))
    return longest


_TCP: Final = ", TCP payload 94 % at MTU 1500; typical kernel-TCP half round trip"
_ROCE: Final = ", RoCE v2 payload 97 % at MTU 4096; typical RoCE half round trip"
_LINKS: Final = (
    ("ethernet-100m", 50e-6, 0.094 * GIGABIT, f"IEEE 802.3u{_TCP}"),
    ("ethernet-1g", 30e-6, 0.94 * GIGABIT, f"IEEE 802.3ab{_TCP}"),
    ("ethernet-10g", 15e-6, 9.4 * GIGABIT, f"IEEE 802.3ae{_TCP}"),
    ("ethernet-25g", 10e-6, 23.5 * GIGABIT, f"IEEE 802.3by{_TCP}".replace("kernel", "tuned")),
    ("ethernet-100g", 2.5e-6, 97 * GIGABIT, f"IEEE 802.3bj{_ROCE}"),
    ("ethernet-400g", 2.5e-6, 388 * GIGABIT, f"IEEE 802.3bs{_ROCE}"),
    ("infiniband-edr", 1e-6, 97 * GIGABIT, "IBTA 4x EDR 100 Gbit/s, 64b/66b; vendor MPI latency about 1 us"),
    ("infiniband-hdr", 1e-6, 194 * GIGABIT, "IBTA 4x HDR 200 Gbit/s; vendor MPI latency about 1 us"),
    ("infiniband-ndr", 1e-6, 388 * GIGABIT, "IBTA 4x NDR 400 Gbit/s; vendor MPI latency about 1 us"),
    (
        "slingshot-11",
        2e-6,
        194 * GIGABIT,
        "De Sensi et al. 2020 (arXiv 2008.08886) for latency; 200 Gbit/s per NIC",
    ),
    ("nvlink-4", 2e-6, 450e9, "NVIDIA H100: 18 links, 450 GB/s each way; device-to-device latency about 2 us"),
    ("gemini", 1.5e-6, 5.5e9, "Cray Gemini (Titan, FireCaffe's machine), Alverson et al. 2010: 1.5 us, 5.5 GB/s"),
    ("pcie-2", 10e-6, 6e9, "PCI Express 2.0 x16: 8 GB/s less protocol; typical latency of a copy"),
)
"""Name, latency (s), bandwidth (bytes/s) and source."""

MACHINES: Final = Path(__file__).parents[1] / "networks"
"""Files of networks that are fitted to clusters; :mod:`hpcdl.prediction.network_file` also reads their errors."""


def _machine(path: Path) -> Network:
    """Return the network in a file of :data:`MACHINES`."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    head = tables["network"]
    link = Link(**{**tables["link"], "extra": tuple(tables["link"].get("extra", ()))})
    grids = tuple(map(tuple, head.get("grids", ())))
    return Network(head["name"], link, head["source"], head["gamma"], grids=grids)


NETWORKS: Final[dict[str, Network]] = {
    n.name: n
    for n in (
        *(Network(name, Link(latency, 1 / bandwidth), source) for name, latency, bandwidth, source in _LINKS),
        Network(
            "gemini-slow-sums",
            Link(alpha=1.5e-6, beta=1 / 5.5e9),
            "gemini, with sums at 2.6 GB/s: fitted to FireCaffe's plot of its parameter server, 4 and 8 workers",
            gamma=3.8e-10,
        ),
        Network(
            "gemini-k20",
            Link(alpha=1.5e-6, beta=1 / 5.5e9),
            "gemini, with sums in the memory of a K20: NVIDIA's 208 GB/s; a sum reads two bytes and writes one",
            gamma=3 / 208e9,
        ),
        Network(
            "titan",
            Link(alpha=1.5e-6, beta=1 / 5.5e9),
            "gemini as the torus of Titan, two hosts to a router; links of 9.4 GB/s, across boards 4.7 GB/s",
            topology=Torus(sides=[25, 16, 24], hosts=2, widths=[1.7, 0.85, 1.7]),
        ),
        Network(
            "frontier",
            Link(alpha=2.0e-6, beta=1 / (194 * GIGABIT)),
            "slingshot-11 as the dragonfly of Frontier, 74 groups of 32 switches of 16 ports, four links between "
            "two groups; a host is one of a node's four NICs",
            topology=Dragonfly(groups=74, routers=32, hosts=16, between=4.0),
        ),
        Network(
            "rdma-100g",
            Link(2.5e-6, 1 / (94 * GIGABIT)),
            "ethernet-100g at the rate of tcp-100g; 0.2 us to post a message, assumed",
            topology=FatTree(hosts=[1024]),
            site=Site(overhead_seconds=0.2e-6),
        ),
        Network(
            "tcp-100g",
            Link(15e-6, 1 / (94 * GIGABIT)),
            "latency of ethernet-10g; 5 us for the calls of a message, assumed; one core copies a byte before it "
            "is summed, at 42 Gbit/s (Cai et al. 2021, Understanding host network stack overheads)",
            gamma=1 / 10e9 + 1 / (42 * GIGABIT),
            topology=FatTree(hosts=[1024]),
            site=Site(overhead_seconds=5e-6),
        ),
        *(  # messages under way share a host's port, and their latencies overlap
            Network(f"wan-{name}-{ms}ms", Link(ms * 1e-3, beta), "distant hosts", topology=FatTree(hosts=[1024]))
            for name, beta in (("100m", 1 / (0.094 * GIGABIT)), ("1g", 1 / (0.94 * GIGABIT)))
            for ms in (1, 50)
        ),
        *map(_machine, sorted(MACHINES.glob("*.toml"))),
    )
}
"""Presets by name: figures of vendors and standards, which are optimistic, and networks fitted to clusters."""


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
                pairs = ", ".join(f"host {source} to {dest}" for source, dest in cut[:3])
                more = f" and {len(cut) - 3} other pairs" if len(cut) > 3 else ""
                raise ValueError(f"slow: no route from {pairs}{more}: failed links: {', '.join(sorted(failed))}")
        self._numbers: dict[str, int] = {}
        self.bandwidths: list[float] = []
        """Of each link used so far, bytes per second."""
        self.route = cache(self._route)

    def extra_seconds(self, source: int, dest: int, size: int) -> float:
        """Return the time of a message beyond that of its bytes on a port (s)."""
        network, is_inside = self._network, self._host[source] == self._host[dest]
        return (network.inside if is_inside else network.link).extra_seconds(size)

    def _route(self, source: int, dest: int) -> tuple[float, list[int]]:
        """Return the latency (s) of messages between two ranks, and the numbers of their links."""
        network, site = self._network, self._site
        out, into = self._host[source], self._host[dest]
        if out == into:
            link = network.inside
            ends = ((f"rank {source} to its host", 1.0), (f"rank {dest} from its host", 1.0))
            return link.alpha, self._numbered(ends, link.beta)
        port = (dest - source) % len(self._host) % site.ports
        crossed = [
            (name, self._topology.links[name] * (1 - site.background) * self._slow.get(name, 1.0))
            for name in self._topology.route(int(self._place[out]), int(self._place[into]))
        ]
        ends = (f"host {out} port {port} out", 1.0), (f"host {into} port {port} in", 1.0)
        latency = network.link.alpha + len(crossed) * site.hop_seconds
        return latency, self._numbered([ends[0], *crossed, ends[1]], network.link.beta)

    def global_bytes(self, link_bytes: Mapping[int, int]) -> int:
        """Return the bytes over links between groups, of the bytes over each link by its number."""
        links, is_global = self._topology.links, self._topology.is_global
        return sum(
            link_bytes.get(of, 0) for link, of in self._numbers.items() if link in links and is_global(link)
        )

    def _numbered(self, links: Sequence[tuple[str, float]], beta: float) -> list[int]:
        for name, share in links:
            if name not in self._numbers:
                self._numbers[name] = len(self.bandwidths)
                self.bandwidths.append(share / max(beta, NO_TIME))
        return [self._numbers[name] for name, _ in links]
