"""Speedup over ranks, with the ideal line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.report.formats.cells import NONE, digits
from hpcdl.report.formats.charts import Axis, Lines, Point, Series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.report.run.findings import Findings
    from hpcdl.report.run.grouping import Method


def charts(findings: Findings) -> list[Lines]:
    """Return one chart per problem with several numbers of ranks, that with most scales first."""
    drawn = [
        _chart(methods, findings.settings.title(methods[0].scales[0].records[0])) for methods in findings.problems
    ]
    return sorted(filter(None, drawn), key=lambda chart: -sum(len(line.points) for line in chart.series))


def _chart(methods: Sequence[Method], title: str) -> Lines | None:
    series = [
        Series(_name(method), points, "ceiling" if method.is_ceiling else "method")
        for method in methods
        if method.is_compared and (points := _points(method))
    ]
    if all(len(line.points) == 1 for line in series):
        return None
    ranks = sorted({point.x for line in series for point in line.points})
    ordered = sorted(series, key=lambda line: (line.role == "ceiling", -line.points[-1].x, -line.points[-1].y))
    ideal = Series("ideal", [Point(ranks[0], ranks[0]), Point(ranks[-1], ranks[-1])], "reference")
    return Lines(
        f"Speedup{': ' if title else ''}{title}",
        Axis("ranks", whole, 2, ranks),
        Axis("speedup", digits, 2),
        [*ordered, ideal],
        "Speedup: efficiency times ranks; bars are 95 % intervals. Ideal: equal to the number of ranks.",
    )


def _name(method: Method) -> str:
    return method.name + (" (no communication)" if method.is_ceiling else "")


def _points(method: Method) -> list[Point]:
    points = []
    for scale in method.scales:
        ranks, value = scale["ranks"], scale.median("efficiency")
        low, high = scale.low("efficiency_low"), scale.high("efficiency_high")
        if value:
            bounds = (None, None) if low is None or high is None else (low * ranks, high * ranks)
            points.append(Point(ranks, value * ranks, *bounds))
    return points


def whole(value: float | None) -> str:
    """Return a number of ranks or epochs."""
    return NONE if value is None else f"{value:.4g}"
