"""Charts of lines over a measured quantity: the best line first, with ticks where something was measured."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from hpcdl.report.formats.document import MAX_SERIES, Axis, Lines, Point, Series

Reference = Callable[[float], float]
"""A line that was not measured, which is straight on the axes of the chart: its value at a place."""
HIGHEST: Final = -1
LOWEST: Final = 1


def curves(
    title: str,
    axes: tuple[Axis, Axis],
    lines: Mapping[str, Sequence[Point]],
    note: str,
    *,
    best: Literal[1, -1] = HIGHEST,
    limits: Collection[str] = (),
    references: Mapping[str, Reference] | None = None,
) -> list[Lines]:
    """Return a chart of the lines with two points or more; none without any.

    Lines that go farthest come first, then those with the best value at their end: the highest or the lowest.
    The MPI library's own scheme precedes all. ``limits``: lines that bound the others.
    """
    series = [
        Series(name, sorted(points), "ceiling" if name in limits else "method")
        for name, points in lines.items()
        if len({point.x for point in points}) > 1
    ]
    series.sort(key=lambda line: (line.name != "native", -line.points[-1].x, best * line.points[-1].y))
    if not series:
        return []
    across, up = axes
    ticks = sorted({point.x for line in series for point in line.points})
    ends = (ticks[0], ticks[-1])
    series += [
        Series(name, [Point(x, value(x)) for x in ends], "reference") for name, value in (references or {}).items()
    ]
    return [Lines(title, replace(across, ticks=ticks), up, series, note)]


def trade_off(
    title: str, axes: tuple[Axis, Axis], points: Mapping[str, Point], note: str, *, best: Literal[1, -1] = LOWEST
) -> list[Lines]:
    """Return a chart of a point per method, if there are three; ``best``: whether a low or a high x is better.

    Those come first that no other method equals in x with a higher y.
    """
    ordered = sorted(points.items(), key=lambda item: (best * item[1].x, -item[1].y))
    front = [
        name
        for place, (name, point) in enumerate(ordered)
        if all(point.y > other.y for _, other in ordered[:place])
    ]
    others = sorted((name for name in points if name not in front), key=lambda name: -points[name].y)
    series = [Series(name, [points[name]]) for name in (*front, *others)]
    first = f"{note} In colour first: no other method is better in both." if len(series) > MAX_SERIES else note
    return [Lines(title, *axes, series, first)] if len(series) > 2 else []
