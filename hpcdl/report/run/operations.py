"""Single operations, grouped by comparability; the fastest of each group; charts of bandwidth and time."""

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.differences import ALPHA, adjusted, difference
from hpcdl.analysis.statistics.estimates import Interval
from hpcdl.registry import label
from hpcdl.report.formats.cells import percent, plural, rate, seconds, volume, whole
from hpcdl.report.formats.document import Axis, Lines, Point
from hpcdl.report.run.curves import LOWEST, curves
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.method_names import scheme_name

CHECKED: Final = {True: "yes", False: "NO", None: "not checked"}
"""Cell for a result that was right, wrong or not checked."""
BEST: Final = "fastest"
TIED: Final = "tied"


class Group(NamedTuple):
    """Comparable operations: one collective on as many ranks, all measured or all on one simulated network."""

    collective: str
    ranks: int
    dtype: str
    network: str
    conditions: tuple[str, ...]

    @property
    def title(self) -> str:
        """Collective, ranks, type and conditions in words."""
        return self.titled(plural(self.ranks, "rank"))

    def titled(self, subject: str) -> str:
        """Return the title with another subject instead of the ranks."""
        return ", ".join((self.collective, subject, self.dtype or "bytes", *self.conditions))


def grouped(records: Iterable[Record], kind: str) -> dict[Group, list[Record]]:
    """Return the records of a kind by group, ascending by size within each; those of training's sum come first."""
    groups: dict[Group, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.message_bytes or 0):
        if record.kind == kind:
            given = record.settings
            own = [f"{key}={label(given[key])}" for key in ("backend", "threads") if key in given]
            what = " and ".join(filter(None, (record.collective or kind, record.concurrent)))
            dtype, network, conditions = record.dtype or "", record.network or "", (*record.words.values(), *own)
            group = Group(what, int(record.ranks), dtype, network, conditions)
            groups.setdefault(group, []).append(record)
    ordered = sorted(
        groups, key=lambda group: (group.network, group.collective != "allreduce", group.collective, group.ranks)
    )
    return {group: groups[group] for group in ordered}


def sizes(rows: Sequence[Record]) -> dict[int, list[Record]]:
    """Return the records of a group by size, ascending."""
    by_size: dict[int, list[Record]] = {}
    for record in rows:
        by_size.setdefault(record.message_bytes or 0, []).append(record)
    return by_size


def ranked(records: Iterable[Record]) -> list[Record]:
    """Return the records with a time, undisturbed and without a wrong result, the fastest first."""
    kept = [record for record in records if record.time_p50_seconds and record.correct is not False]
    return sorted(
        (record for record in kept if not record.disturbed), key=lambda record: record.time_p50_seconds or 0.0
    )


def place(record: Record, peers: Sequence[Record]) -> str:
    """Return ``fastest``, or ``tied`` with it, among the records of one size; empty for all others.

    Measured times tie if a test of their launches does not tell them apart. One launch is inconclusive: such a
    record has no place, and another is the fastest only if it beat all. Simulated times have no noise and tie
    within 1 %, as no model of a network is better than that.
    """
    ordered = ranked(peers)
    if len(ordered) < 2 or not any(other is record for other in ordered):
        return ""
    first, *others = ordered
    single = [other for other in ordered if not other.network and len(other.launch_seconds or ()) < 2]
    if any(other is first for other in single):
        return ""
    tied = _equal(first, others) if first.network else _untold(first, others)
    if record is first:
        return TIED if tied else "" if single else BEST
    return TIED if any(other is record for other in tied) else ""


def _equal(first: Record, others: Sequence[Record]) -> list[Record]:
    time = first.time_p50_seconds or 0.0
    return [other for other in others if math.isclose(time, other.time_p50_seconds or 0.0, rel_tol=0.01)]


def _untold(first: Record, others: Sequence[Record]) -> list[Record]:
    """Return those of several launches that Welch's test, adjusted for their number, does not find slower."""
    times = [np.log(other.launch_seconds or ()) for other in others]
    test = difference([np.log(first.launch_seconds or ())] * len(others), times)
    known = [len(time) > 1 for time in times]
    slower = (adjusted(np.where(known, test.p, np.nan)) < ALPHA) & (test.value > 0)
    return [other for other, sure, late in zip(others, known, slower, strict=True) if sure and not late]


def collective_time(findings: Findings) -> list[Lines]:
    """Return times over size and over ranks, first over what has more values; the allreduce comes first."""
    groups = grouped(findings.records, "collective")
    networks = {group.network for group in groups}
    over_size = [
        (
            f"Time over size: {group.title.replace(f'simulated on {group.network}', 'simulated')}",
            ", ".join(filter(None, (scheme_name(record), group.network if len(networks) > 1 else ""))),
            record.message_bytes or 0,
            record,
        )
        for group, rows in _largest_first(groups)
        for record in ranked(rows)
    ]
    over_ranks = [
        (f"Time over ranks: {group.titled(volume(size))}", scheme_name(record), group.ranks, record)
        for group, rows in groups.items()
        for size, peers in sizes(rows).items()
        for record in ranked(peers)
    ]
    over_ranks.sort(key=lambda timed: -(timed[-1].message_bytes or 0))
    most_sizes = max((len(sizes(rows)) for rows in groups.values()), default=0)
    of_sizes, of_ranks = _times(Axis("size", volume, 2), over_size), _times(Axis("ranks", whole, 2), over_ranks)
    many_sizes = most_sizes >= len({group.ranks for group in groups})
    return [*of_sizes, *of_ranks] if many_sizes else [*of_ranks, *of_sizes]


def _times(axis: Axis, timed: Iterable[tuple[str, str, float, Record]]) -> list[Lines]:
    """Return one chart per title; each record has a title, the name of a line, and a place on the axis."""
    charts: dict[str, dict[str, list[Point]]] = {}
    notes = dict[str, str]()
    for title, name, place, record in timed:
        bounds = (record.time_p50_low_seconds, record.time_p50_high_seconds)
        point = Point(place, record.time_p50_seconds or 0.0, *(bounds if None not in bounds else ()))
        charts.setdefault(title, {}).setdefault(name, []).append(point)
        measured = "Median time of the slowest rank; bars are 95 % intervals."
        notes[title] = "Simulated times." if record.network else measured
    axes = axis, Axis("time", seconds, 10)
    return [chart for title in charts for chart in curves(title, axes, charts[title], notes[title], best=LOWEST)]


def bus_bandwidth(findings: Findings) -> list[Lines]:
    """Return bus bandwidth over size, / the rate of the links if they are emulated."""
    link, made = link_rate(findings), list[Lines]()
    title, axis = "Bus bandwidth", Axis("busbw", rate, 10)
    note = "Bus bandwidth as nccl-tests defines it; bars are 95 % intervals."
    if link:
        title, axis = "Share of the link's rate", Axis("busbw / rate of the link", percent)
        note = f"Rate of the links: {rate(link)}, emulated. {note}"
    whole_link = {"the link's rate": lambda _size: 1.0} if link else None
    for group, rows in _largest_first(grouped(findings.records, "collective")):
        points: dict[str, list[Point]] = {}
        for record in rows:
            busbw = bandwidth(record, link)
            if math.isfinite(busbw.value) and record.correct is not False:
                point = busbw if math.isfinite(busbw.low) else busbw[:1]
                points.setdefault(scheme_name(record), []).append(Point(record.message_bytes or 0, *point))
        axes = Axis("size", volume, 2), axis
        made += curves(f"{title}: {group.title}", axes, points, note, references=whole_link)
    return made


def _largest_first(groups: dict[Group, list[Record]]) -> list[tuple[Group, list[Record]]]:
    return sorted(groups.items(), key=lambda item: (item[0].collective != "allreduce", -item[0].ranks))


def link_rate(findings: Findings) -> float:
    """Return the rate of the slowest emulated link (bytes/s); 0 if links are not emulated."""
    rates = (findings.run.environment.get("emulated") or {}).get("bytes_per_second") or {}
    return float(min(rates.values(), default=0))


def bandwidth(record: Record, link: float) -> Interval:
    """Return the bus bandwidth with the interval of its time, / the rate of the links if it is not 0."""
    middle = record.time_p50_seconds or math.nan
    times = middle, record.time_p50_high_seconds, record.time_p50_low_seconds
    whole = (record.busbw_bytes_per_second or math.nan) * middle / (link or 1.0)
    return Interval(*(whole / (time or math.nan) for time in times))
