"""Bus bandwidth over the size of a collective, with the rate of the slowest link where it is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.report.charts import Axis, Lines, Point, Series
from hpcdl.report.formatting import rate, volume
from hpcdl.report.method_names import scheme_name
from hpcdl.report.operations import grouped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.scaling import Record
    from hpcdl.report.findings import Findings
    from hpcdl.report.operations import Group

NOTE: Final = (
    "Bus bandwidth as nccl-tests defines it; bars are 95 % intervals. Slowest link: no algorithm exceeds its "
    "rate by more than noise."
)


def charts(found: Findings) -> list[Lines]:
    """Return one chart per group of comparable collectives with several sizes; the most ranks first."""
    made = [_chart(group, rows, found) for group, rows in grouped(found.records, "collective").items()]
    return [one for one in reversed(made) if one]


def _chart(group: Group, rows: Sequence[Record], found: Findings) -> Lines | None:
    points: dict[str, list[Point]] = {}
    for record in rows:
        if record["busbw_bytes_per_second"] and record["correct"] is not False:
            points.setdefault(scheme_name(record), []).append(_point(record))
    sizes = sorted({point.x for one in points.values() for point in one})
    if len(sizes) < 2:
        return None
    series = [Series(name, one) for name, one in points.items()]
    series.sort(key=lambda one: (-one.points[-1].x, -one.points[-1].y))
    bound = _bound(group, rows, found)
    if bound:
        series.append(Series("slowest link", [Point(sizes[0], bound), Point(sizes[-1], bound)], "reference"))
    note = NOTE if bound else NOTE.partition(" Slowest ")[0]
    return Lines(f"Bus bandwidth: {group.title}", Axis("size", volume, 2), Axis("busbw", rate, 10), series, note)


def _point(record: Record) -> Point:
    """Return the bandwidth; its interval follows from the time's."""
    size, value, middle = (
        record[name] for name in ("message_bytes", "busbw_bytes_per_second", "time_p50_seconds")
    )
    low, high = record.get("time_p50_low_seconds"), record.get("time_p50_high_seconds")
    if not low or not high:
        return Point(size, value)
    return Point(size, value, value * middle / high, value * middle / low)


def _bound(group: Group, rows: Sequence[Record], found: Findings) -> float | None:
    """Return the rate of the slowest link (bytes/s) of emulated hosts with one rank each; None for others."""
    first = rows[0]
    environment = found.run.environments.get(str(first.get("environment_key")), found.run.environment)
    emulated = environment.get("emulated")
    if group.network or not emulated or first.get("nodes") != group.ranks:
        return None
    hosts = {str(rank.get("hostname")) for rank in (environment.get("ranks") or ())[: group.ranks]}
    rates = [each for host, each in emulated["bytes_per_second"].items() if host in hosts]
    return float(min(rates)) if len(rates) == group.ranks else None
