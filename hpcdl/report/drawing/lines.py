"""Lines with intervals, over linear or logarithmic axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from hpcdl.report.drawing.canvas import label
from hpcdl.report.drawing.palette import COLOURS, DASHES, GRID, INK, MARKERS, MUTED, PAPER, SERIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as Drawn

    from hpcdl.report.charts import Axis, Lines, Series

HEIGHT: Final = 3.1
GAP: Final = 0.035
"""Inches between two series with intervals."""
DENSE: Final = 24
"""Points of a line beyond which they have no markers."""
MARGIN: Final = 0.05
"""Share of the range that is free at each end."""
TICKS: Final = 7
"""Labels of an axis, at most, unless its ticks are given."""


def draw(chart: Lines, axes: Axes) -> None:
    """Draw the first series of :func:`named` in colours, the others as thin lines."""
    _scale(chart.x, axes.xaxis, axes.set_xscale)
    _scale(chart.y, axes.yaxis, axes.set_yscale)
    colours = {id(one): number for number, one in enumerate(named(chart))}
    for one in reversed(chart.series):  # the first is drawn on top
        x, y = [point.x for point in one.points], [point.y for point in one.points]
        if one.role == "reference":
            axes.plot(x, y, color=INK, linewidth=1, dashes=(5, 3))
        elif one.role == "ceiling":
            axes.plot(x, y, color=MUTED, linewidth=1.2, dashes=(1.5, 1.5), marker="o", markersize=3.5)
        elif id(one) in colours:
            _series(one, colours[id(one)], axes, (len(colours) - 1) / 2)
        else:
            axes.plot(x, y, color=GRID, linewidth=1)
    points = [point for one in chart.series for point in one.points]  # shifted lines do not count by themselves
    axes.set_xlim(_limits([point.x for point in points], chart.x))
    axes.set_ylim(_limits([one for point in points for one in point[1:] if one is not None], chart.y))


def named(chart: Lines) -> list[Series]:
    """Return the series with a colour of their own."""
    return [one for one in chart.series if one.role == "method"][:SERIES]


def _series(one: Series, number: int, axes: Axes, middle: float) -> None:
    """Draw a series; those with intervals stand side by side, ``middle`` at its place."""
    x, y = [point.x for point in one.points], [point.y for point in one.points]
    colour = COLOURS[number]
    bounded = [point for point in one.points if point.low is not None and point.high is not None]
    figure = axes.get_figure()
    place = axes.transData
    if bounded and figure is not None:
        place = place + ScaledTranslation((number - middle) * GAP, 0, figure.dpi_scale_trans)
        below = [max(0.0, point.y - (point.low or 0.0)) for point in bounded]
        above = [max(0.0, (point.high or 0.0) - point.y) for point in bounded]
        places, values = [point.x for point in bounded], [point.y for point in bounded]
        bars: dict[str, Any] = {"color": colour, "ecolor": colour, "elinewidth": 1, "capsize": 2}
        axes.errorbar(places, values, [below, above], fmt="none", transform=place, **bars)
    style: dict[str, Any] = {"dashes": DASHES[number]} if DASHES[number] else {}
    marker = MARKERS[number] if len(x) <= DENSE else ""
    style |= {"color": colour, "linewidth": 1.6, "markersize": 5, "markeredgecolor": PAPER, "transform": place}
    axes.plot(x, y, marker=marker, **style)


def _scale(axis: Axis, drawn: Drawn, set_scale: Any) -> None:
    if axis.base:
        set_scale("log", base=axis.base)
        drawn.set_major_locator(LogLocator(axis.base, numticks=TICKS))
        drawn.set_minor_locator(NullLocator())
    else:
        drawn.set_major_locator(MaxNLocator(TICKS - 1))
    if axis.ticks:
        step = -(-len(axis.ticks) // TICKS)
        drawn.set_major_locator(FixedLocator(list(axis.ticks)[::-step][::-1]))
        drawn.set_minor_locator(NullLocator())
    drawn.set_major_formatter(FuncFormatter(lambda value, _: axis.shown(_whole(value))))
    drawn.set_label_text(label(axis.label))


def _limits(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    """Return the range of the values and a margin."""
    if axis.base:
        known = [value for value in values if value > 0] or [1.0]
        margin = max((max(known) / min(known)) ** MARGIN, 1.05)
        return min(known) / margin, max(known) * margin
    margin = MARGIN * (max(values) - min(values)) or 0.5
    return min(values) - margin, max(values) + margin


def _whole(value: float) -> float:
    """Return a value without the error of its logarithm."""
    return round(value) if abs(value) >= 1 and abs(value - round(value)) < 1e-9 * abs(value) else value
