"""Hosts and links: speed of each and the slow ones, messages of pairs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.report.formats.cells import NONE, digits, interval, plural, rate, seconds, volume
from hpcdl.report.formats.charts import Axis, HeatMap
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Answer, Declaration, without
from hpcdl.report.run.method_names import scheme_name
from hpcdl.report.run.operations import CHECKED, grouped
from hpcdl.report.sections.collectives import one_launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.network.links import Links
    from hpcdl.analysis.network.slow_hosts import Speeds
    from hpcdl.analysis.statistics.estimates import Interval
    from hpcdl.report.run.findings import Findings


def pairwise_page(findings: Findings) -> Section:
    """Return one table per group of comparable exchanges."""
    groups = grouped(findings.records, "pairwise")
    header = ("size", "program", "p50", "95 %", "p99", "max", "algbw", "correct")
    tables = [
        Table(
            group.title,
            header,
            [
                (
                    volume(record["message_bytes"]),
                    scheme_name(record),
                    seconds(record["time_p50_seconds"]),
                    interval(record["time_p50_low_seconds"], record["time_p50_high_seconds"], seconds),
                    seconds(record["time_p99_seconds"]),
                    seconds(record["time_max_seconds"]),
                    rate(record["algbw_bytes_per_second"]),
                    CHECKED[record["correct"]],
                )
                for record in rows
            ],
            2,
        )
        for group, rows in groups.items()
    ]
    records = [record for rows in groups.values() for record in rows]
    return Section("Pairwise exchange", one_launch(records), tables=tables, per="exchange")


PAIRWISE: Final = Declaration(120, pairwise_page, terminal=without("95 %", "max"))


MAX_RANKS: Final = 48
"""Ranks of a map, at most; more share rows and columns."""
SMALL_MAP: Final = 4096
"""Bytes of messages, below which a map shows times instead of rates."""


def link_map(findings: Findings) -> list[HeatMap]:
    """Return one map per case in which all pairs exchanged."""
    return [
        _chart(link)
        for link in findings.links
        if link.fields.get("pattern") == "all_pairs" and np.isfinite(link.seconds).any()
    ]


def _chart(links: Links) -> HeatMap:
    size = int(links.fields["message_bytes"])
    small = size < SMALL_MAP
    values = links.seconds if small else links.rates
    width = -(-len(values) // MAX_RANKS)
    begins = range(0, len(values), width)
    worst = np.fmax if small else np.fmin
    if width > 1:
        values = np.asarray(worst.reduceat(worst.reduceat(values, begins, 0), begins, 1), np.float64)
    labels = [_label(links, begin, width) for begin in begins]
    several = f" Each cell is the worst of {width} x {width} links." if width > 1 else ""
    return HeatMap(
        f"Links: {len(links.seconds)} ranks, {volume(size)}",
        labels,
        labels,
        "rank",
        "rank",
        values,
        Axis("time of an exchange", seconds) if small else Axis("rate in each direction", rate),
        f"Median over repetitions of an exchange, both directions at once.{several}",
    )


def _label(links: Links, rank: int, width: int) -> str:
    if width > 1:
        return f"{rank}-{min(rank + width, len(links.seconds)) - 1}"
    return f"{rank} {links.hosts[rank]}" if len(set(links.hosts)) > 1 else str(rank)


TITLE: Final = "Hosts and links"

WIDEST: Final = 16
"""Ranks, at most, of a map that fits a page."""

NOTE: Final = (
    "Median over repetitions of an exchange, both directions at once, by its slower side; of several launches the "
    "median over the undisturbed ones. A host is named if the median of its links is below 85 % of the others' "
    "and no link of it reaches 95 %; a link if it is below 85 % of the median and neither of its hosts is slow. "
    "The interval over repetitions or launches (95 %, all hosts or links together) must exclude 1. None is named "
    "among fewer than three hosts, where ranks outnumber cores, or in a disturbed case."
)

TRACED: Final = (
    "From the events of other cases: the highest rate at which a host sent, or received, which waiting does not "
    "change. It is named if both are below 80 % of the others' and the interval over parts of the trace (95 %, "
    "all hosts together) excludes 1; then its case has a map of each link's highest rate: rows send, columns "
    "receive. None is named among fewer than three hosts."
)


def links_page(findings: Findings) -> Section:
    """Return a map per case, and the range over its pairs; of traced cases those alone with a slow host."""
    slow_in = [speed for speed in findings.speeds if _slow_hosts(speed, findings.usable_cores)]
    tables = [Table(_title(link), *_map(link)) for link in findings.links]
    tables += [Table(f"{slow.fields.get('case')}: share of the usual speed", *_shares(slow)) for slow in slow_in]
    notes = [*([NOTE] if findings.links else []), *([TRACED] if slow_in else [])]
    points = _ranges(findings)
    return Section(TITLE, notes, points, tables) if tables else Section(TITLE, points=points)


def _ranges(findings: Findings) -> list[str]:
    """Return one line per case of several pairs: the fastest and the slowest pair, and the slowest host."""
    lines = []
    for link in findings.links:
        if len(link.seconds) == 2:
            continue
        pairs = [f"{_pair(link, i, j)} in {seconds(time)}" for i, j, time in link.extremes()]
        line = f"{_title(link)}: fastest {pairs[0]}, slowest {pairs[1]}" if pairs else f"{_title(link)}: no times"
        shares = link.shares()
        if obstacle := _obstacle(link, findings.usable_cores):
            line += f"; {obstacle}, so that no slow host can be named"
        elif shares:
            host, share = shares[0]
            line += f"; slowest {link.names[host]}, {_with_bounds(share)} of the others' speed"
        lines.append(f"{line}.")
    return lines


def links_answer(findings: Findings) -> Answer | None:
    """Return the slowest host, or that none is slow."""
    hosts: dict[str, list[Interval]] = {}
    for mapped in findings.links:
        if not _obstacle(mapped, findings.usable_cores):
            for host, share in mapped.slow_hosts():
                hosts.setdefault(mapped.names[host], []).append(share)
    for traced in findings.speeds:
        for name, share in _slow_hosts(traced, findings.usable_cores):
            hosts.setdefault(name, []).append(share)
    ordered = sorted(hosts.items(), key=lambda links: links[1][0].value)
    lines = [
        f"{name}'s link runs at {shares[0].value:.2f} of the others'{_seen(shares)}." for name, shares in ordered
    ]
    lines += [
        f"The link between {link.names[i]} and {link.names[j]} runs at {part:.2f} of the usual speed."
        for link in findings.links
        if not _obstacle(link, findings.usable_cores)
        for i, j, part in link.slow_links()
    ]
    if not lines and findings.links:
        lines = [_none_slow(findings.links, findings.usable_cores)]
    return Answer(lines[0], lines[1:]) if lines else None


def _seen(shares: Sequence[Interval]) -> str:
    """Return the interval, and the range of the same host's shares in all cases."""
    first, *others = shares
    bounds = f" (95 %: {_bounds(first)}" if math.isfinite(first.low) else " (no interval"
    values = [other.value for other in others]
    more = f"; {_links_range(values)} in {plural(len(values), 'other case')}" if values else ""
    return f"{bounds}{more})"


def _links_range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _none_slow(mapped: Sequence[Links], cores: float | None) -> str:
    """Return why no host is named: too few hosts, shared or lost cores, or none is slow."""
    clear = [links for links in mapped if not _obstacle(links, cores)]
    if not clear:
        obstacles = dict.fromkeys(_obstacle(links, cores) for links in mapped)
        return f"No host can be named as slow: {'; '.join(obstacles)}."
    slowest = [(share.value, links.names[host]) for links in clear for host, share in links.shares()[:1]]
    if not slowest:
        return "No host can be named as slow: that takes at least three hosts."
    value, name = min(slowest)
    return f"No host or link is slow: the slowest host, {name}, runs at {value:.2f} of the others' speed."


def _obstacle(links: Links, cores: float | None) -> str:
    """Return the reason why slow links of the case accuse no host; empty if there is none."""
    if cores is not None and len(links.seconds) > cores * max(1, len(set(links.hosts))):
        return "ranks share cores"
    return f"DISTURBED, {links.disturbed}" if links.disturbed else ""


def _slow_hosts(speeds: Speeds, cores: float | None) -> list[tuple[str, Interval]]:
    """Return names and shares of the slow hosts of a traced case; none where ranks share cores."""
    if cores is not None and speeds.oversubscribed(cores):
        return []
    return [(speeds.hosts[host], share) for host, share in speeds.slow_hosts()]


def _with_bounds(share: Interval) -> str:
    return f"{share.value:.2f}" + (f" (95 %: {_bounds(share)})" if math.isfinite(share.low) else "")


def _bounds(share: Interval) -> str:
    return interval(share.low, share.high, lambda value: f"{value:.2f}")


def _shares(speeds: Speeds) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    speed = speeds.relative()
    shown = [[digits(float(v)) if np.isfinite(v) else NONE for v in row] for row in speed]
    if len(speeds.hosts) <= WIDEST:
        return ("", *speeds.hosts), [(name, *row) for name, row in zip(speeds.hosts, shown, strict=True)]
    return ("", "share"), [(speeds.hosts[host], digits(share.value)) for host, share in speeds.slow_hosts()]


def _title(links: Links) -> str:
    pattern = {"all_pairs": "all pairs", "bisection": "bisection"}[str(links.fields["pattern"])]
    return f"{pattern}, {len(links.seconds)} ranks, {volume(links.fields['message_bytes'])}"


def _named(links: Links, rank: int) -> str:
    several = len(set(links.hosts)) > 1
    return f"rank {rank} on {links.hosts[rank]}" if several else f"rank {rank}"


def _pair(links: Links, i: int, j: int) -> str:
    return f"{_named(links, i)} with {_named(links, j)}"


def _map(links: Links) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: the map itself, or of many ranks only each one's slowest, median and fastest link."""
    size = links.fields["message_bytes"]
    shown, values = (seconds, links.seconds) if size < SMALL_MAP else (rate, links.rates)
    ranks = range(len(values))
    if len(values) <= WIDEST:
        rows = [
            (str(i), *(shown(float(values[i, j])) if np.isfinite(values[i, j]) else NONE for j in ranks))
            for i in ranks
        ]
        return ("rank", *map(str, ranks)), rows
    marks = np.nanquantile(values, [0, 0.5, 1], axis=1).T
    return ("rank", "least", "median", "most"), [(str(i), *(shown(float(v)) for v in marks[i])) for i in ranks]


LINKS: Final = Declaration(
    10,
    links_page,
    terminal=lambda section: replace(section, paragraphs=[], tables=[]),
    answer=links_answer,
    figures=(link_map,),
)
