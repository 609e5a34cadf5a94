"""Network cost model: Hockney's alpha-beta per link, ports per host, and gamma for the reduction.

A message of n bytes takes ``alpha + n * beta`` (Hockney 1994). Each host has one send port and one receive port,
and each is busy with one message at a time for that long, so that messages to one host queue: this is a parameter
server's incast. Ranks of one host use its ``inside`` link, one port pair per rank. Ports of some hosts may be
slower.

A real port shares its rate among the messages under way. Both take equally long if ports never idle. With many
messages per port at once, as in ``direct``, turns leave gaps that sharing does not: on numbers of ranks that are
no power of two the model takes up to twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

GIGABIT: Final = 1e9 / 8
"""Bytes per second."""

EVERY_RANK: Final = 1 << 31
"""Value of ranks per host for one host that holds all ranks."""


@dataclass(frozen=True)
class Link:
    """``alpha``: seconds for an empty message; ``beta``: seconds per byte."""

    alpha: float
    beta: float


SHARED_MEMORY: Final = Link(alpha=0.5e-6, beta=1 / 10e9)
"""Between ranks of one host unless a network defines it: two copies at the speed of a server's memory."""


@dataclass(frozen=True)
class Network:
    """A cluster of equal hosts behind a non-blocking switch."""

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
    slow: Mapping[int, float] = field(default_factory=dict)
    """Hosts whose ports have this share of the others' bandwidth, in and out."""

    def host(self, rank: int) -> int:
        """Return the host of a rank."""
        known = len(self.hosts)
        if rank < known:
            return self.hosts[rank]
        return max(self.hosts, default=-1) + 1 + (rank - known) // self.ranks_per_host

    def common_link(self, ranks: int) -> Link | None:
        """Return the link of all messages among the first ``ranks`` ranks; None if there are two kinds of link."""
        hosts = {self.host(rank) for rank in range(ranks)}
        return self.link if len(hosts) == ranks else self.inside if len(hosts) == 1 else None

    def on(self, ranks_per_host: int) -> Network:
        """Return this network with that many ranks on a host, numbered host by host."""
        if ranks_per_host < 1:
            raise ValueError(f"ranks_per_host must be at least 1, not {ranks_per_host}")
        return replace(self, ranks_per_host=ranks_per_host, hosts=())

    @property
    def is_one_host(self) -> bool:
        """True if all ranks, in any number, are on one host."""
        return self.ranks_per_host == EVERY_RANK


def _network(name: str, latency: float, bandwidth: float, source: str) -> Network:
    return Network(name, Link(alpha=latency, beta=1 / bandwidth), source)


NETWORKS: Final[dict[str, Network]] = {
    n.name: n
    for n in (
        _network(
            "ethernet-100m",
            50e-6,
            0.094 * GIGABIT,
            "IEEE 802.3u, TCP payload 94 % at MTU 1500; typical kernel-TCP half round trip",
        ),
        _network(
            "ethernet-1g",
            30e-6,
            0.94 * GIGABIT,
            "IEEE 802.3ab, TCP payload 94 % at MTU 1500; typical kernel-TCP half round trip",
        ),
        _network(
            "ethernet-10g",
            15e-6,
            9.4 * GIGABIT,
            "IEEE 802.3ae, TCP payload 94 % at MTU 1500; typical kernel-TCP half round trip",
        ),
        _network(
            "ethernet-25g",
            10e-6,
            23.5 * GIGABIT,
            "IEEE 802.3by, TCP payload 94 % at MTU 1500; typical tuned-TCP half round trip",
        ),
        _network(
            "ethernet-100g",
            2.5e-6,
            97 * GIGABIT,
            "IEEE 802.3bj, RoCE v2 payload 97 % at MTU 4096; typical RoCE half round trip",
        ),
        _network(
            "ethernet-400g",
            2.5e-6,
            388 * GIGABIT,
            "IEEE 802.3bs, RoCE v2 payload 97 % at MTU 4096; typical RoCE half round trip",
        ),
        _network(
            "infiniband-edr",
            1.0e-6,
            97 * GIGABIT,
            "IBTA 4x EDR 100 Gbit/s, 64b/66b; vendor MPI latency about 1 us",
        ),
        _network("infiniband-hdr", 1.0e-6, 194 * GIGABIT, "IBTA 4x HDR 200 Gbit/s; vendor MPI latency about 1 us"),
        _network("infiniband-ndr", 1.0e-6, 388 * GIGABIT, "IBTA 4x NDR 400 Gbit/s; vendor MPI latency about 1 us"),
        _network(
            "slingshot-11",
            2.0e-6,
            194 * GIGABIT,
            "De Sensi et al. 2020 (arXiv 2008.08886) for latency; 200 Gbit/s per NIC",
        ),
        _network(
            "nvlink-4",
            2.0e-6,
            450e9,
            "NVIDIA H100: 18 links, 450 GB/s each way; device-to-device latency about 2 us",
        ),
        _network(
            "gemini",
            1.5e-6,
            5.5e9,
            "Cray Gemini (Titan, FireCaffe's machine), Alverson et al. 2010: 1.5 us, about 5.5 GB/s per NIC",
        ),
        Network(
            "gemini-slow-sums",
            Link(alpha=1.5e-6, beta=1 / 5.5e9),
            "gemini, with sums at 3.3 GB/s as FireCaffe's plot of its parameter server implies",
            gamma=3e-10,
        ),
        _network("pcie-2", 10e-6, 6e9, "PCI Express 2.0 x16: 8 GB/s less protocol; typical latency of a copy"),
    )
}
"""Presets by name. Vendors' and standards' figures, not measurements: fit your own from measured cases."""
