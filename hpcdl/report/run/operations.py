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
            dtype, network = record.dtype or "", record.network or ""
            given = record.settings
            own = [f"{key}={label(given[key])}" for key in ("backend", "threads") if key in given]
            conditions = (*record.words.values(), *own)
            what = " and ".join(filter(None, (record.collective or kind, record.concurrent)))
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
    ranks, lengths = {group.ranks for group in groups}, [len(sizes(rows)) for rows in groups.values()]
    over_size, over_ranks = _times_over_size(_largest_first(groups)), _times_over_ranks(groups)
    many_sizes = max(lengths, default=0) >= len(ranks)
    return [*over_size, *over_ranks] if many_sizes else [*over_ranks, *over_size]


def bus_bandwidth(findings: Findings) -> list[Lines]:
    """Return bus bandwidth over size, / the rate of the links if they are emulated."""
    link = link_rate(findings)
    groups = _largest_first(grouped(findings.records, "collective"))
    return [chart for group, rows in groups for chart in _bus_bandwidth(group, rows, link)]


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


def _bus_bandwidth(group: Group, rows: Sequence[Record], link: float) -> list[Lines]:
    """Return bus bandwidth over size, / the rate of the emulated links (bytes/s) where ``link`` is known."""
    points: dict[str, list[Point]] = {}
    for record in rows:
        busbw = bandwidth(record, link)
        if math.isfinite(busbw.value) and record.correct is not False:
            point = busbw if math.isfinite(busbw.low) else busbw[:1]
            points.setdefault(scheme_name(record), []).append(Point(record.message_bytes or 0, *point))
    note = "Bus bandwidth as nccl-tests defines it; bars are 95 % intervals."
    size = Axis("size", volume, 2)
    if not link:
        return curves(f"Bus bandwidth: {group.title}", (size, Axis("busbw", rate, 10)), points, note)
    note = f"Rate of the links: {rate(link)}, emulated. {note}"
    whole_link = {"the link's rate": lambda _size: 1.0}
    axes = size, Axis("busbw / rate of the link", percent)
    return curves(f"Share of the link's rate: {group.title}", axes, points, note, references=whole_link)


def _times_over_size(groups: Sequence[tuple[Group, Sequence[Record]]]) -> list[Lines]:
    """Return one chart per collective and number of ranks; simulated networks share it."""
    charts: dict[str, dict[str, list[Point]]] = {}
    networks = {group.network for group, _ in groups}
    for group, rows in groups:
        title = group.title.replace(f"simulated on {group.network}", "simulated")
        for record in ranked(rows):
            name = ", ".join(filter(None, (scheme_name(record), group.network if len(networks) > 1 else "")))
            points = charts.setdefault(f"Time over size: {title}", {}).setdefault(name, [])
            points.append(_timed(record.message_bytes or 0, record))
    axes = Axis("size", volume, 2), Axis("time", seconds, 10)
    note = _time_note(simulated="" not in networks)
    return [chart for title, lines in charts.items() for chart in curves(title, axes, lines, note, best=LOWEST)]


def _times_over_ranks(groups: dict[Group, list[Record]]) -> list[Lines]:
    """Return one chart per collective and size."""
    families: dict[tuple[Group, int], dict[str, list[Point]]] = {}
    for group, rows in groups.items():
        for record in ranked(rows):
            points = families.setdefault((group._replace(ranks=0), record.message_bytes or 0), {})
            points.setdefault(scheme_name(record), []).append(_timed(group.ranks, record))
    axes = Axis("ranks", whole, 2), Axis("time", seconds, 10)
    return [
        chart
        for (family, size), points in sorted(families.items(), key=lambda item: -item[0][1])
        for title in [f"Time over ranks: {family.titled(volume(size))}"]
        for chart in curves(title, axes, points, _time_note(simulated=bool(family.network)), best=LOWEST)
    ]


def _timed(place: float, record: Record) -> Point:
    bounds = (record.time_p50_low_seconds, record.time_p50_high_seconds)
    return Point(place, record.time_p50_seconds or 0.0, *(bounds if None not in bounds else ()))


def _time_note(*, simulated: bool) -> str:
    return "Simulated times." if simulated else "Median time of the slowest rank; bars are 95 % intervals."
