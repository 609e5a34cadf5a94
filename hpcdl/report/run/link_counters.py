"""Counters of links that grew: errors, and what congestion is made of, by host and device."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from hpcdl.report.formats.cells import plural, spread
from hpcdl.report.formats.document import Section
from hpcdl.report.formats.tables import Table
from hpcdl.trace.link_counters import KINDS, LinkCounters, kind_of

NAMED: Final = 3
"""Counters of a kind that a warning names."""
FACTOR: Final = 2
"""A counter grew more than in other runs if its least growth is more than this times their greatest."""
NOTE: Final = "Growth in a run, in the driver's units; port_xmit_wait counts ticks."


class Counter(NamedTuple):
    """Place and name of a counter."""

    host: str
    device: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} of {self.host} {self.device}"


def troubles(counters: LinkCounters) -> dict[Counter, int]:
    """Return the growth of the counters of errors and congestion, greatest first."""
    grown = {
        Counter(host, device, name): value
        for host, devices in counters.items()
        for device, values in (devices or {}).items()
        for name, value in values.items()
        if value and kind_of(name) in KINDS
    }
    return dict(sorted(grown.items(), key=lambda item: -item[1]))


def warnings(counters: LinkCounters) -> Iterator[str]:
    """Return a line per kind, with the counters that grew on the fewest hosts, and one for unread hosts."""
    grown = troubles(counters)
    unread = [host for host, devices in counters.items() if devices is None]
    read = plural(len(counters) - len(unread), "host")
    for kind in KINDS:
        places: dict[str, list[Counter]] = {}
        for counter in grown:
            if kind_of(counter.name) == kind:
                places.setdefault(counter.name, []).append(counter)
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


def section(counters: LinkCounters) -> Section:
    """Return a row per counter of errors and congestion that grew."""
    rows = [(*counter, str(kind_of(counter.name)), str(value)) for counter, value in troubles(counters).items()]
    tables = [Table("", ("host", "device", "counter", "kind", "growth"), rows, 4, [NOTE])] if rows else []
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
        if earlier and len(later) == len(now) and min(later) > FACTOR * max(earlier):
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
