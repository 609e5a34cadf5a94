"""Time of a collective over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.report.charts import Axis, Lines, Point, Series
from hpcdl.report.figures.speedup import whole
from hpcdl.report.formatting import seconds, volume
from hpcdl.report.method_names import scheme_name
from hpcdl.report.operations import grouped, ranked

if TYPE_CHECKING:
    from hpcdl.analysis.scaling import Record
    from hpcdl.report.findings import Findings
    from hpcdl.report.operations import Group


def charts(found: Findings) -> list[Lines]:
    """Return one chart per collective and size with several numbers of ranks, the largest sizes first."""
    families: dict[tuple[Group, int], list[Record]] = {}
    for group, rows in grouped(found.records, "collective").items():
        for record in ranked(rows):
            families.setdefault((group._replace(ranks=0), record["message_bytes"] or 0), []).append(record)
    made = [
        _chart(family, size, rows) for (family, size), rows in sorted(families.items(), key=lambda one: -one[0][1])
    ]
    return [one for one in made if len(one.x.ticks) > 1]


def _chart(family: Group, size: int, rows: list[Record]) -> Lines:
    points: dict[str, list[Point]] = {}
    for record in sorted(rows, key=lambda one: int(one["ranks"])):
        bounds = (record.get("time_p50_low_seconds"), record.get("time_p50_high_seconds"))
        point = Point(int(record["ranks"]), record["time_p50_seconds"], *(bounds if None not in bounds else ()))
        points.setdefault(scheme_name(record), []).append(point)
    series = [Series(name, one) for name, one in points.items()]
    series.sort(key=lambda one: (-one.points[-1].x, one.points[-1].y))
    ranks = sorted({point.x for one in series for point in one.points})
    how = "" if family.network else "; bars are 95 % intervals"
    return Lines(
        f"Time over ranks: {family.titled(volume(size))}",
        Axis("ranks", whole, 2, ranks),
        Axis("time", seconds, 10),
        series,
        f"Median time of the slowest rank{how}.",
    )
