"""A chart as a drawing with a legend; names are in the legend, which wraps and has no length."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from hpcdl.report.charts import Bars, Columns, HeatMap, Lines, Tiles
from hpcdl.report.drawing import bars, lines, maps
from hpcdl.report.drawing.canvas import drawn
from hpcdl.report.drawing.palette import DASHES, SERIES, SHAPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcdl.report.charts import Chart


class Entry(NamedTuple):
    """A line of a legend: a sample, and the name."""

    colour: str
    """CSS."""
    dashes: str
    """``stroke-dasharray`` of a line; "none" for a bar or tile."""
    shape: str
    """Path of a marker, 28 x 12; empty without."""
    name: str


class Figure(NamedTuple):
    """A chart as SVG with its legend."""

    svg: str
    legend: Sequence[Entry]


SQUARE = "M9 1h10v10h-10z"


def figure(chart: Chart, number: int) -> Figure:
    """Draw a chart; ``number`` makes its ids unique on a page."""
    match chart:
        case Lines():
            return Figure(drawn(partial(lines.draw, chart), lines.HEIGHT, number), _of_lines(chart))
        case Bars():
            return Figure(drawn(partial(bars.draw_bars, chart), bars.height(chart), number), _boxes(chart.parts))
        case Columns():
            svg = drawn(partial(bars.draw_columns, chart), lines.HEIGHT, number)
            return Figure(svg, [*_boxes(chart.series), *_others(len(chart.series), "")])
        case HeatMap():
            return Figure(drawn(partial(maps.draw_heat_map, chart), maps.height(len(chart.rows)), number), [])
        case Tiles():
            svg = drawn(partial(maps.draw_tiles, chart), maps.height(len(chart.rows)), number)
            every = {name for row in chart.names for name in row if name}
            names = [f"{place}: {name}" for place, name in enumerate(maps.names(chart), 1)]
            return Figure(svg, [*_boxes(names), *_others(len(every), SQUARE)])


def _of_lines(chart: Lines) -> list[Entry]:
    found = [
        Entry(f"var(--s{number})", _dashes(DASHES[number]), SHAPES[number], one.name)
        for number, one in enumerate(lines.named(chart))
    ]
    found += _others(sum(one.role == "method" for one in chart.series), "")
    ceilings = [one.name for one in chart.series if one.role == "ceiling"]
    found += [Entry("var(--muted)", "1.5 1.5", "M14 3.8a2.2 2.2 0 1 0 .01 0z", name) for name in ceilings]
    found += [Entry("currentColor", "5 3", "", one.name) for one in chart.series if one.role == "reference"]
    return found


def _dashes(lengths: Iterable[float]) -> str:
    return " ".join(f"{1.6 * length:g}" for length in lengths) or "1 0"


def _boxes(names: Iterable[str]) -> list[Entry]:
    return [
        Entry(f"var(--s{number})", "none", SQUARE, name) for number, name in enumerate(names) if number < SERIES
    ]


def _others(count: int, shape: str) -> list[Entry]:
    """Return the entry of series without a colour of their own."""
    if count <= SERIES:
        return []
    return [Entry("var(--grid)", "none" if shape else "1 0", shape, f"{count - SERIES} others, see the numbers")]
