"""Counters of links that grew: errors, and what congestion is made of, by host and device."""

import math
import re
from collections import Counter as Counts
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from hpcdl.analysis.run.disturbance import UNKNOWN, facts
from hpcdl.analysis.run.record import Record, group_by_key
from hpcdl.report.formats.cells import percent, plural, rate, spread, volume
from hpcdl.report.formats.document import Section
from hpcdl.report.formats.tables import Table
from hpcdl.trace.files import JsonMapping
from hpcdl.trace.link_counters import KINDS, TRAFFIC, UNKNOWN_RATES, Kind, LinkCounters, kind_of, recorded

NAMED: Final = 3
"""Counters of a kind that a warning names."""
FACTOR: Final = 2
"""A counter grew more than in other runs if its least growth is more than this times their greatest."""
DEPARTS: Final = 10
"""A counter departs from other hosts if it grew by this times their greatest growth, and by as many at least."""
FACTORS: Final = {"rx_bytes": 1, "tx_bytes": 1, "port_rcv_data": 4, "port_xmit_data": 4}
"""Bytes of a unit of a counter; ports of InfiniBand count words of 32 bits."""
PACKET: Final = 4096
"""Usual bytes of a packet of InfiniBand, for ports that count no packets."""
LIMITS: Final[Sequence[tuple[Kind, str, float, int]]] = (
    ("errors", "down|recover", 0, 0),  # a link that is up is not trained again
    # InfiniBand and Ethernet allow one wrong bit in 1e12
    ("errors", "symbol|crc|fcs|integrity|uncorrect|replay|physical|^(rx|port_rcv)_(frame_)?errors$", 3e-8, 0),
    ("errors", "^rx_dropped$", 1e-3, 10),  # has frames of protocols that a host does not speak: LLDP, STP
    ("errors", "", 1e-4, 10),  # at this loss RoCE, and TCP at 100 us to the other host, become slower
    ("congestion", "wait|paused|stall", 100, 1),  # ticks or cycles: a tenth of the time of a packet
    ("congestion", "duration", 0.03, 1),  # microseconds: a tenth of the time of a packet at 100 Gbit/s
    ("congestion", "", 1e-3, 1),  # a flow that is always congested has a mark in 150 packets
)
"""Kind, names, and usual growth: for each packet of 4 KiB of the port, and at most always. The first row counts.

Where no growth is usual, ports that carry little count, too.
"""
NOTE: Final = "Growth in a run, in the driver's units; port_xmit_wait counts ticks."


class Counter(NamedTuple):
    """Place and name of a counter."""

    host: str
    device: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} of {self.host} {self.device}"


def _counters(counters: LinkCounters) -> Iterator[tuple[Counter, int | None]]:
    for host, devices in counters.items():
        for device, values in (devices or {}).items():
            yield from ((Counter(host, device, name), value) for name, value in values.items())


def troubles(counters: LinkCounters) -> dict[Counter, int]:
    """Return the growth of the counters of errors and congestion, greatest first."""
    grown = {counter: value for counter, value in _counters(counters) if value and kind_of(counter.name) in KINDS}
    return dict(sorted(grown.items(), key=lambda item: -item[1]))


def _limit(counter: str) -> tuple[float, int]:
    """Return a counter's usual growth: for each packet, and at most always."""
    kind, name = kind_of(counter), counter.lower()
    return next(row[2:] for row in LIMITS if row[0] == kind and re.search(row[1], name))


def _carried(counters: Mapping[str, int | None]) -> float:
    """Return the bytes that a port received and sent; NaN if unknown."""
    grown = ((counters.get(unit, 0), factor) for unit, factor in FACTORS.items())
    return sum(math.nan if units is None else units * factor for units, factor in grown)


def _packets(counters: Mapping[str, int | None]) -> float:
    """Return the packets that a port carried, at least; 0 if unknown."""
    packets = sum(counters.get(name) or 0 for name in TRAFFIC if name.endswith("packets"))
    return max(packets, _carried(counters) / PACKET)


def conspicuous(counters: LinkCounters) -> dict[Counter, int]:
    """Return the growth of the counters beyond their limits, and of those that depart from other hosts.

    Losses of a port that carried little, such as the standby link of a bond, harm no job. A device that counts no
    packets is judged by those of its host; if these are unknown, each growth is conspicuous.
    """
    grown = troubles(counters)
    places = group_by_key((counter.name, counter) for counter in grown)
    packets = {
        host: {device: _packets(values) for device, values in devices.items() if device != "lo"}
        for host, devices in counters.items()
        if devices is not None
    }

    def is_beyond(counter: Counter) -> bool:
        (per_packet, always), of_host = _limit(counter.name), packets[counter.host]
        most = max(of_host.values(), default=0.0)
        carried = of_host.get(counter.device) or most
        is_standby = always > 0 and carried < IDLE * most
        return not is_standby and (not carried or grown[counter] > max(always, per_packet * carried))

    def departs(counter: Counter) -> bool:
        others = (grown[other] for other in places[counter.name] if other.host != counter.host)
        return len(packets) > 1 and grown[counter] >= DEPARTS * max(1, next(others, 0))

    return {counter: value for counter, value in grown.items() if is_beyond(counter) or departs(counter)}


def warnings(counters: LinkCounters) -> Iterator[str]:
    """Return a line per kind, with the counters that grew on the fewest hosts, and one for unread hosts."""
    grown = conspicuous(counters)
    unread = [host for host, devices in counters.items() if devices is None]
    read = plural(len(counters) - len(unread), "host")
    for kind in KINDS:
        places = group_by_key((counter.name, counter) for counter in grown if kind_of(counter.name) == kind)
        hosts = {name: len({counter.host for counter in of_name}) for name, of_name in places.items()}
        words = [
            f"{name} on {hosts[name]} of {read} read, most on {worst.host} {worst.device} ({grown[worst]})"
            for name, (worst, *_) in sorted(places.items(), key=lambda item: hosts[item[0]])
        ]
        more = f"; {plural(len(words) - NAMED, 'more counter')}" if len(words) > NAMED else ""
        if words:
            yield f"Link {kind} grew: {'; '.join(words[:NAMED])}{more}. Check these links."
    if unread:
        yield f"Counters of links of {', '.join(unread[:NAMED])} could not be read: errors may be missed."
    reset = [place for place, value in _counters(counters) if value is None and kind_of(place.name) == "errors"]
    if reset:
        more = f"; {plural(len(reset) - 1, 'more counter')} alike" if reset[1:] else ""
        yield f"{reset[0]} was reset or is at its maximum: errors may be missed. Have it cleared{more}."


PREFIXES: Final = {"M": 1e6, "G": 1e9}
IDLE, CARRIER = 0.01, 0.05
"""Share of the busiest NIC's bytes below which one is idle; of a host's bytes from which on one carried them."""


class Nic(NamedTuple):
    """A port or interface that is up. ``rate``: bit/s, 0: unknown; ``carried``: bytes in and out, NaN: unknown."""

    name: str
    driver: str
    rate: float
    carried: float


def nics(environment: JsonMapping) -> dict[str, list[Nic]]:
    """Return the NICs of each host by the description of the first one; virtual ones have no driver.

    Ports of InfiniBand and RoCE unless interfaces carried more, some of which are theirs.
    """
    hosts: dict[str, list[Nic]] = {}
    for host, devices in recorded(environment).items():
        kinds = [
            [
                _nic(name, card, (devices or {})[name])
                for name, card in facts(environment, kind).items()
                if name in (devices or {}) and str(card.get("state")).endswith(("ACTIVE", "up"))
                if card.get("driver", UNKNOWN) not in {UNKNOWN, "veth", "bridge"}
            ]
            for kind in ("infiniband", "network")
        ]
        hosts[host] = max(kinds, key=lambda each: sum(nic.carried for nic in each))
    return hosts


def _nic(name: str, card: JsonMapping, counters: Mapping[str, int | None]) -> Nic:
    driver, rate = str(card.get("driver")), re.match(r"([\d.]+) ([MG])b", str(card.get("rate")))
    # EFA states one rate for all of its cards
    is_known = rate and driver != "efa" and float(rate[1]) not in UNKNOWN_RATES
    bits = float(rate[1]) * PREFIXES[rate[2]] if rate and is_known else 0.0
    return Nic(name, driver, bits, _carried(counters))


def host_rate(environment: JsonMapping) -> float:
    """Return the rate (bytes/s) of the NICs that carried a host's bytes; 0 if unknown or different."""
    if any(str(card.get("driver")).startswith("cxi") for card in facts(environment, "network").values()):
        return 0.0  # a card of Slingshot does not count the bytes of MPI
    rates = set[float]()
    for of_host in nics(environment).values():
        limit = max(CARRIER * sum(nic.carried for nic in of_host), 1.0)  # NaN: unknown, and no NIC reaches it
        carriers = [nic.rate for nic in of_host if nic.carried >= limit]
        rates.add(sum(carriers) / 8 if len(set(carriers)) == 1 else 0.0)
    return rates.pop() if len(rates) == 1 else 0.0


def link_rate(environment: JsonMapping, measured: Sequence[Record]) -> float:
    """Return the rate of a host's link (bytes/s): of the slowest emulated one, or of its NICs; 0: unknown.

    NICs that carried less than a ``measured`` bandwidth are not those that carried it.
    """
    if testbed := environment.get("emulated"):
        return float(min(testbed["bytes_per_second"].values(), default=0))
    link = host_rate(environment) if measured else 0.0
    return link if all((record.busbw_bytes_per_second or 0) <= MAX_SHARE * link for record in measured) else 0.0


MAX_SHARE: Final = 1.05
"""Of a link's rate; a higher one is another link's."""


def idle_nics(environment: JsonMapping) -> Iterator[str]:
    """Yield a warning if half of a host's ports of one kind were idle in a job of several, with ranks for more."""
    ranks = Counts(str(rank.get("hostname")) for rank in environment.get("ranks") or ())
    idle = list[str]()
    hosts = nics(environment)
    for host, of_host in hosts.items() if len(hosts) > 1 else ():
        for kind in dict.fromkeys(nic[1:3] for nic in of_host if "/" in nic.name):  # "device/port"
            alike = [nic for nic in of_host if nic[1:3] == kind]
            limit = IDLE * max((nic.carried for nic in alike if nic.carried > 0), default=0.0)
            rest = [nic.name for nic in alike if nic.carried < limit]
            if 2 * len(rest) >= len(alike) and len(alike) - len(rest) < ranks.get(host, len(alike)):
                idle.append(f"{len(rest)} of {len(alike)} NICs of {host} were idle: {', '.join(rest)}")
    if idle:
        more = f"; {plural(len(idle) - 1, 'more host')} alike" if idle[1:] else ""
        yield f"{idle[0]}{more}. Check UCX_NET_DEVICES, UCX_MAX_RNDV_RAILS, NCCL_IB_HCA and the binding of ranks."


def section(environment: JsonMapping) -> Section:
    """Return a row per counter of errors and congestion that grew, and per NIC of hosts with several."""
    grown = troubles(recorded(environment))
    rows = [(*counter, str(kind_of(counter.name)), str(value)) for counter, value in grown.items()]
    tables = [Table("", ("host", "device", "counter", "kind", "growth"), rows, 4, [NOTE])] if rows else []
    several = [
        (host, nic.name, nic.driver, rate(nic.rate / 8 or None), volume(nic.carried), percent(nic.carried, total))
        for host, of_host in nics(environment).items()
        if len(of_host) > 1 and (total := sum(nic.carried for nic in of_host))
        for nic in of_host
    ]
    header = ("host", "NIC", "driver", "rate", "bytes", "share of the host's")
    tables += [Table("NICs that are up", header, several, 3)] if several else []
    return Section("Counters of links", tables=tables)


Beyond = dict[Counter, tuple[list[int], list[int]]]
"""Growths of a counter in runs before and in runs now."""


def grown_beyond(before: Sequence[LinkCounters], now: Sequence[LinkCounters]) -> Beyond:
    """Return the counters that grew more than :data:`FACTOR` times as much in each run now as in any before.

    Runs before count if host and device took part; a counter without any is left out.
    """
    beyond: Beyond = {}
    for counter in troubles(now[-1]) if now else ():
        earlier, later = (_growths(counter, runs) for runs in (before, now))
        least = max(FACTOR * max(earlier, default=0), _limit(counter.name)[1])
        if earlier and len(later) == len(now) and min(later) > least:
            beyond[counter] = (earlier, later)
    return beyond


def _growths(counter: Counter, runs: Sequence[LinkCounters]) -> list[int]:
    devices = ((run.get(counter.host) or {}).get(counter.device) for run in runs)
    values = (counters.get(counter.name, 0) for counters in devices if counters is not None)
    return [value for value in values if value is not None]


def compared(beyond: Beyond) -> Section:
    """Return a row per counter."""
    rows = [(*counter, *(spread(side, str) for side in sides)) for counter, sides in beyond.items()]
    tables = [Table("", ("host", "device", "counter", "before", "now"), rows, 3, [NOTE])] if rows else []
    return Section("Counters of links that grew more", tables=tables)


def records(beyond: Beyond) -> list[dict[str, object]]:
    """Return the counters for JSON."""
    return [{**counter._asdict(), "before": before, "now": now} for counter, (before, now) in beyond.items()]


def sentence(beyond: Beyond) -> str:
    """Return a sentence about the counter that grew most, for a change that came with it; empty without any."""
    for counter, (before, now) in beyond.items():
        more = f", as {plural(len(beyond) - 1, 'more counter')} did" if len(beyond) > 1 else ""
        runs = f"{spread(before, str)} in {plural(len(before), 'run')} before"
        return f"With it {counter} grew by {spread(now, str)}, and by {runs}{more}."
    return ""
