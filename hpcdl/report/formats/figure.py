"""Marks of the charts of a figure, and a figure as a separate file, SVG, PDF or PNG, with title and note."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.exit_codes import visible
from hpcdl.report.formats import canvas
from hpcdl.report.formats.canvas import COLOURS, GRID, INK, MAX_NAME, MUTED, PAPER, drawn, label, themed, ticker
from hpcdl.report.formats.cells import seconds, whole
from hpcdl.report.formats.document import MAX_SERIES, Axis, Bars, Chart, HeatMap, Intervals, Lines, Series, caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as Drawn

LINE_HEIGHT, POINT_HEIGHT, LABEL_LINE = 0.24, 0.18, 0.16
"""Inches of a bar, of a point with its interval, and of a line of a label."""


def draw_bars(chart: Bars, axes: Axes) -> None:
    """Draw the first label on top."""
    places = np.arange(len(chart.labels))
    begin = np.zeros(len(places))
    for (name, lengths), colour in zip(chart.parts.items(), COLOURS, strict=False):
        axes.barh(places, lengths, 0.72, begin, color=colour, edgecolor=PAPER, linewidth=0.6, label=name)
        begin = begin + np.asarray(lengths)
    _rows(chart, axes)


def draw_intervals(chart: Intervals, axes: Axes) -> None:
    """Draw the first label on top, each value as a point with its interval, and the reference as a line."""
    for place, (value, low, high) in enumerate(chart.values):
        axes.plot([value], [place], marker="o", markersize=MARKER, color=COLOURS[0])
        if low is not None and high is not None and math.isfinite(high - low):
            axes.plot([low, high], [place, place], color=COLOURS[0], linewidth=1.6)
    if chart.reference is not None:
        axes.axvline(chart.reference, color=INK, linewidth=1, dashes=(5, 3))
    axes.set_ylim(-0.7, len(chart.labels) - 0.3)
    _rows(chart, axes)


def _rows(chart: Bars | Intervals, axes: Axes) -> None:
    axes.set_yticks(np.arange(len(chart.labels)), [_wrapped(text) for text in chart.labels])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(4))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: chart.axis.shown(value)))
    axes.set_xlabel(chart.axis.label)


def _wrapped(text: str) -> str:
    """Return a label on up to four lines, so that names that begin alike are told apart."""
    words, most = visible(text).replace(",", ", "), canvas.MAX_LABEL
    return "\n".join(textwrap.wrap(words, most, max_lines=4, placeholder="\N{HORIZONTAL ELLIPSIS}"))


def _height(chart: Bars | Intervals, row: float) -> float:
    """Return the inches of a chart whose rows have so many; more if a label takes several lines."""
    lines = max((_wrapped(text).count("\n") + 1 for text in chart.labels), default=1)
    return 0.8 + max(row, LABEL_LINE * lines) * len(chart.labels)


MARKERS: Final = ("o", "s", "^", "D", "v", "P")
DASHES: Final[tuple[tuple[float, ...], ...]] = ((), (6, 2), (2, 1.5), (6, 2, 2, 2), (9, 2), (4, 1, 1, 1, 1, 1))
"""In points; empty: a solid line."""
MARKER, LARGER = 4.5, 0.7
"""Points of the first series' marker, and what each series below it has more."""
DENSE: Final = 24
"""Points of a line beyond which they have no markers."""
MARGIN: Final = 0.05
"""Share of the range that is free at each end."""
TICKS: Final = 7
"""Labels of an axis, at most, unless its ticks are given."""


def draw_lines(chart: Lines, axes: Axes) -> None:
    """Draw the first series in colours, the others as thin grey lines."""
    points = [point for line in chart.series for point in line.points]
    values = [value for point in points for value in point[1:] if value is not None]
    _scale(chart.x, [point.x for point in points], axes.xaxis, axes.set_xscale, axes.set_xlim)
    _scale(chart.y, values, axes.yaxis, axes.set_yscale, axes.set_ylim)
    methods = [line for line in chart.series if line.role == "method"]
    for number, line in enumerate(methods[:MAX_SERIES]):
        _series(line, number, axes)
    for line in methods[MAX_SERIES:]:
        marker = "o" if len(line.points) == 1 else ""
        axes.plot(*_places(line), color=GRID, linewidth=1, marker=marker, drawstyle=STEPS[line.steps], zorder=1)
    for line in chart.series:
        if line.role == "reference":
            _reference(line, axes)
        elif line.role == "baseline":
            style: dict[str, Any] = {"color": MUTED, "linewidth": 1.2, "marker": "o", "markersize": 3.5}
            axes.plot(*_places(line), dashes=(1.5, 1.5), label=label(line.name, MAX_NAME), **style)


STEPS: Final = {False: "default", True: "steps-post"}
"""Drawing of a series by :attr:`Series.steps`."""


def _places(line: Series) -> tuple[list[float], list[float]]:
    return [point.x for point in line.points], [point.y for point in line.points]


def _reference(line: Series, axes: Axes) -> None:
    """Draw a dashed line; a level has its name beside the drawing, another line has it in the legend."""
    x, y = _places(line)
    level = len(set(y)) == 1
    axes.plot(x, y, color=INK, linewidth=1, dashes=(5, 3), label=None if level else label(line.name, MAX_NAME))
    if level:
        at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axes.annotate(line.name, (1, y[0]), (3, 0), va="center", fontsize=8, annotation_clip=False, **at)


def _series(series: Series, number: int, axes: Axes) -> None:
    """Draw a series where its values are; those below others have larger markers, so that all are seen."""
    x, y = _places(series)
    style: dict[str, Any] = {"color": COLOURS[number], "zorder": 3 - number / MAX_SERIES}
    bounded = [point for point in series.points if None not in point]
    if bounded:
        places, values, low, high = np.array(bounded, np.float64).T
        reach = np.maximum([values - low, high - values], 0)
        axes.errorbar(places, values, reach, fmt="none", elinewidth=1, capsize=2, **style)
    if DASHES[number]:
        style["dashes"] = DASHES[number]
    style |= {
        "linewidth": 1.6,
        "markersize": MARKER + LARGER * number,
        "markerfacecolor": "none",
        "markeredgewidth": 1.3,
        "marker": "" if series.steps or len(x) > DENSE else MARKERS[number],
        "drawstyle": STEPS[series.steps],
    }
    if len(x) == 1:
        style = {key: value for key, value in style.items() if key != "dashes"} | {"linestyle": ""}
    axes.plot(x, y, label=label(series.name, MAX_NAME), **style)


def _scale(
    axis: Axis,
    values: Sequence[float],
    drawn: Drawn,
    set_scale: Callable[..., Any],
    set_limits: Callable[..., Any],
) -> None:
    """Set scale, limits and ticks; values of less than a decade have a linear scale instead of a decimal one."""
    narrow = axis.base == 10 and not axis.ticks and max(values) < 10 * min(values)
    base = 0 if narrow else axis.base
    limits = _limits(values, base)
    if base:
        set_scale("log", base=base)
        between = (1.0, 2.0, 5.0) if base == 10 and limits[1] < 100 * limits[0] else (1.0,)
        drawn.set_major_locator(ticker.LogLocator(base, between, numticks=TICKS))
        drawn.set_minor_locator(ticker.NullLocator())
    else:
        drawn.set_major_locator(ticker.MaxNLocator(TICKS - 1, integer=axis.shown is whole))
        if axis.shown is seconds and limits[1] > 120:  # from two minutes on, ticks are at whole minutes
            drawn.set_major_locator(ticker.MultipleLocator(60 * math.ceil((limits[1] - limits[0]) / 60 / TICKS)))
    if axis.ticks:
        drawn.set_major_locator(ticker.FixedLocator(_apart(axis.ticks, base)))
        drawn.set_minor_locator(ticker.NullLocator())
    drawn.set_major_formatter(ticker.FuncFormatter(lambda value, _: axis.shown(_whole(value))))
    drawn.set_label_text(label(axis.label))
    set_limits(limits)


def _apart(ticks: Sequence[float], base: int) -> list[float]:
    """Return the ticks with room for a label, from the last one on; ``base`` of a logarithmic scale, or 0."""
    places = {(math.log(tick) if base else tick): tick for tick in ticks if tick > 0 or not base}
    room, kept = 0.9 * (max(places, default=0) - min(places, default=0)) / TICKS, list[float]()
    for place in sorted(places, reverse=True):
        if not kept or kept[-1] - place >= room:
            kept.append(place)
    return [places[place] for place in kept]


def _limits(values: Sequence[float], base: int) -> tuple[float, float]:
    if base:
        known = [value for value in values if value > 0] or [1.0]
        margin = max((max(known) / min(known)) ** MARGIN, 1.05)
        return min(known) / margin, max(known) * margin
    margin = MARGIN * (max(values) - min(values)) or 0.5
    return min(values) - margin, max(values) + margin


def _whole(value: float) -> float:
    """Return a value without the error of its logarithm."""
    return round(value) if abs(value) >= 1 and abs(value - round(value)) < 1e-9 * abs(value) else value


PIXELS: Final = 256
"""Pixels of a map's side, at least."""
MAP_TICKS: Final = 12
"""Labels of an axis, at most."""


def draw_heat_map(chart: HeatMap, axes: Axes) -> None:
    """Draw values from 0 (dark) on in cividis, which colour-blind readers see alike."""
    size = len(chart.values)
    # viewers smooth few pixels
    pixels = np.kron(chart.values, np.ones((PIXELS // size + 1, PIXELS // size + 1)))
    extent = (-0.5, size - 0.5, size - 0.5, -0.5)
    image = axes.imshow(pixels, vmin=0, cmap="cividis", aspect="auto", interpolation="none", extent=extent)
    across = max(2, min(MAP_TICKS, 44 // (1 + max(map(len, chart.labels), default=1))))
    for set_ticks, most in ((axes.set_yticks, MAP_TICKS), (axes.set_xticks, across)):
        places = range(0, size, -(-size // most))  # of many every nth
        set_ticks(places, [label(chart.labels[place]) for place in places])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.grid(visible=False)
    axes.set_xlabel(chart.label)
    axes.set_ylabel(chart.label)
    figure = axes.get_figure()
    if figure is not None:
        bar: Any = figure.colorbar(image, ax=axes, pad=0.02)  # its stubs are wrong
        bar.solids.set_rasterized(True)
        bar.outline.set_visible(False)
        bar.ax.yaxis.set_major_locator(ticker.MaxNLocator(4))
        bar.ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: chart.axis.shown(value)))
        bar.set_label(chart.axis.label)


def figure(chart: Chart, number: int) -> str:
    """Draw a chart as an SVG element with a legend; ``number`` makes its ids unique on a page."""
    return themed(_drawn(chart, "svg").decode(), number)


def _drawn(chart: Chart, form: str, title: str = "") -> bytes:
    match chart:
        case Lines():
            draw, height = partial(draw_lines, chart), 3.1
        case Bars():
            draw, height = partial(draw_bars, chart), _height(chart, LINE_HEIGHT)
        case Intervals():
            draw, height = partial(draw_intervals, chart), _height(chart, POINT_HEIGHT)
        case HeatMap():
            draw, height = partial(draw_heat_map, chart), min(4.4, max(1.9, 0.9 + 0.3 * len(chart.labels)))
    return drawn(draw, height, form, title, caption(chart) if title else "")


def standalone(chart: Chart, form: str) -> bytes:
    """Return a chart with its title and note as a file: svg, pdf or png; an SVG follows the reader's theme."""
    drawing = _drawn(chart, form, chart.title)
    if form != "svg":
        return drawing
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'aria-label="{escape(visible(chart.title))}" font-family="system-ui, sans-serif"'
    )
    svg = re.sub(r'^<svg class="chart" role="img"([^>]*>)', r"\1", themed(drawing.decode(), 1), count=1)
    return f"{head}{svg.replace('>', f'><style>{canvas.theme_css()}</style>', 1)}\n".encode()
