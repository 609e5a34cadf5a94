"""A figure as a separate file: SVG with its title, legend and note, for light and dark."""

from __future__ import annotations

import re
import textwrap
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from hpcdl.report.formats.cells import visible
from hpcdl.report.formats.charts import Bars, Columns, HeatMap, Lines, Tiles
from hpcdl.report.formats.drawing.canvas import DARK, DASHES, LIGHT, SERIES, SHAPES, Theme, drawn
from hpcdl.report.formats.drawing.marks import (
    HEIGHT,
    bars_height,
    draw_bars,
    draw_columns,
    draw_heat_map,
    draw_lines,
    draw_tiles,
    map_height,
    named_series,
    tile_names,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcdl.report.formats.charts import Chart


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
            return Figure(drawn(partial(draw_lines, chart), HEIGHT, number), _of_lines(chart))
        case Bars():
            return Figure(drawn(partial(draw_bars, chart), bars_height(chart), number), _boxes(chart.parts))
        case Columns():
            svg = drawn(partial(draw_columns, chart), HEIGHT, number)
            return Figure(svg, [*_boxes(chart.series), *_others(len(chart.series), "")])
        case HeatMap():
            return Figure(drawn(partial(draw_heat_map, chart), map_height(len(chart.rows)), number), [])
        case Tiles():
            svg = drawn(partial(draw_tiles, chart), map_height(len(chart.rows)), number)
            every = {name for row in chart.names for name in row if name}
            names = [f"{place}: {name}" for place, name in enumerate(tile_names(chart), 1)]
            return Figure(svg, [*_boxes(names), *_others(len(every), SQUARE)])


def _of_lines(chart: Lines) -> list[Entry]:
    entries = [
        Entry(f"var(--s{number})", _dashes(DASHES[number]), SHAPES[number], line.name)
        for number, line in enumerate(named_series(chart))
    ]
    entries += _others(sum(line.role == "method" for line in chart.series), "")
    ceilings = [line.name for line in chart.series if line.role == "ceiling"]
    entries += [Entry("var(--muted)", "1.5 1.5", "M14 3.8a2.2 2.2 0 1 0 .01 0z", name) for name in ceilings]
    entries += [Entry("currentColor", "5 3", "", line.name) for line in chart.series if line.role == "reference"]
    return entries


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


TOP: Final = 24
"""Height of the title."""
ROW: Final = 14
"""Height of a row of the legend or note."""
KEY: Final = 34
"""Width of a legend's sample, and a space."""
LETTER: Final = 5.0
"""Width of a letter, at least the mean one."""
LINE: Final = 84
"""Letters of a line of the note."""
WIDE: Final = 52
"""Letters of a line of the title."""
STYLE: Final = (
    ":root{%s}@media(prefers-color-scheme:dark){:root{%s}}svg{color:var(--ink)}text{fill:var(--ink)}"
    ".m{fill:var(--muted)}.key{fill:none;stroke-width:1.8}"
)


def standalone(made: Figure, title: str, note: str) -> str:
    """Return an SVG document; its colours follow the reader's theme."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', made.svg)
    if box is None:
        raise ValueError("a drawing without its size")
    width, height = map(float, box.groups())
    headings = textwrap.wrap(visible(title), WIDE)
    top = TOP + ROW * (len(headings) - 1)
    legend, below = _legend(made.legend, width, top + height + 6)
    below += 4
    lines = textwrap.wrap(visible(note), LINE)
    words = [
        f'<text class="m" x="6" y="{below + ROW * number + 8:g}" font-size="7.5">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    total = below + ROW * len(lines) + 4
    chart = made.svg.replace('<svg class="chart"', f'<svg y="{top}" width="{width:g}" height="{height:g}"', 1)
    style = STYLE % tuple(map(_variables, (LIGHT, DARK)))
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(visible(title))}" '
            f'viewBox="0 0 {width:g} {total:g}" font-family="system-ui, sans-serif">'
        ),
        f"<style>{style}</style>",
        f'<rect width="{width:g}" height="{total:g}" style="fill:var(--paper)"/>',
        *(
            f'<text x="6" y="{15 + ROW * number}" font-size="11" font-weight="600">{escape(line)}</text>'
            for number, line in enumerate(headings)
        ),
        chart,
        *legend,
        *words,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _variables(theme: Theme) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in theme.variables().items())


def _legend(entries: Sequence[Entry], width: float, top: float) -> tuple[list[str], float]:
    """Return the legend in columns of equal width, and the place below it."""
    names = [visible(entry.name) for entry in entries]
    longest = max(map(len, names), default=0)
    columns = max(1, int(width // (KEY + LETTER * longest + 10)))
    found = []
    for number, (one, name) in enumerate(zip(entries, names, strict=True)):
        x, y = 6 + number % columns * width / columns, top + number // columns * ROW
        line = f'<path d="M1 6H27" style="stroke:{one.colour};stroke-dasharray:{one.dashes}"/>'
        mark = f'<path d="{one.shape}" style="fill:{one.colour}"/>' if one.shape else ""
        sample = (line if one.dashes != "none" else "") + mark
        text = f'<text x="{KEY}" y="9" font-size="8.5">{escape(name)}</text>'
        found.append(f'<g transform="translate({x:g},{y:g})"><g class="key">{sample}</g>{text}</g>')
    return found, top + -(-len(entries) // columns) * ROW
