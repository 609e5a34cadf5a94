"""Single operations, grouped by comparability; the fastest of each group; charts of bandwidth and time."""

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.differences import ALPHA, adjusted, difference
from hpcdl.registry import label
from hpcdl.report.formats.cells import plural, rate, seconds, volume, whole
from hpcdl.report.formats.document import Axis, Lines, Point, Series
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


def bus_bandwidth(findings: Findings) -> list[Lines]:
    """Return one chart per group of comparable collectives with several sizes; the most ranks first."""
    charts = []
    for group, rows in reversed(grouped(findings.records, "collective").items()):
        points: dict[str, list[Point]] = {}
        for record in rows:
            value, middle = record.busbw_bytes_per_second, record.time_p50_seconds
            if value and middle and record.correct is not False:
                low, high = record.time_p50_low_seconds, record.time_p50_high_seconds
                bounds = (value * middle / high, value * middle / low) if low and high else ()
                points.setdefault(scheme_name(record), []).append(Point(record.message_bytes or 0, value, *bounds))
        axes = Axis("size", volume, 2), Axis("busbw", rate, 10)
        note = "Bus bandwidth as nccl-tests defines it; bars are 95 % intervals."
        if len({point.x for measured in points.values() for point in measured}) > 1:
            charts.append(Lines(f"Bus bandwidth: {group.title}", *axes, _series(points, best=-1), note))
    return charts


def collective_time(findings: Findings) -> list[Lines]:
    """Return one chart per collective and size with several numbers of ranks, the largest sizes first."""
    families: dict[tuple[Group, int], dict[str, list[Point]]] = {}
    for group, rows in grouped(findings.records, "collective").items():
        for record in ranked(rows):
            bounds = (record.time_p50_low_seconds, record.time_p50_high_seconds)
            point = Point(group.ranks, record.time_p50_seconds or 0.0, *(bounds if None not in bounds else ()))
            points = families.setdefault((group._replace(ranks=0), record.message_bytes or 0), {})
            points.setdefault(scheme_name(record), []).append(point)
    charts = []
    for (family, size), points in sorted(families.items(), key=lambda item: -item[0][1]):
        ranks = sorted({point.x for measured in points.values() for point in measured})
        if len(ranks) > 1:
            axes = Axis("ranks", whole, 2, ranks), Axis("time", seconds, 10)
            note = f"Median time of the slowest rank{'' if family.network else '; bars are 95 % intervals'}."
            title = f"Time over ranks: {family.titled(volume(size))}"
            charts.append(Lines(title, *axes, _series(points, best=1), note))
    return charts


def _series(points: dict[str, list[Point]], best: int) -> list[Series]:
    """Return the lines of algorithms, the best at their end first; ``best``: 1 if that is the least, else -1."""
    series = [Series(name, measured) for name, measured in points.items()]
    return sorted(series, key=lambda line: (-line.points[-1].x, best * line.points[-1].y))
