"""Stacked horizontal bars, and groups of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from hpcdl.report.drawing.canvas import label
from hpcdl.report.drawing.palette import COLOURS, PAPER, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hpcdl.report.charts import Bars, Columns

LINE: Final = 0.24
"""Inches of a bar."""
GROUP: Final = 0.8
"""Width of a group of columns, of 1."""


def height(chart: Bars) -> float:
    """Return the height of the drawing in inches."""
    return 0.8 + LINE * len(chart.labels)


def draw_bars(chart: Bars, axes: Axes) -> None:
    """Draw the first label on top."""
    places = np.arange(len(chart.labels))
    begin = np.zeros(len(places))
    for number, lengths in enumerate(chart.parts.values()):
        axes.barh(places, lengths, 0.72, begin, color=COLOURS[number], edgecolor=PAPER, linewidth=0.6)
        begin = begin + np.asarray(lengths)
    axes.set_yticks(places, [label(one) for one in chart.labels])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: chart.axis.shown(value)))
    axes.set_xlabel(chart.axis.label)


def draw_columns(chart: Columns, axes: Axes) -> None:
    """Draw one column of each group per series, the first ones of them."""
    shown = list(chart.series.values())[:SERIES]
    places = np.arange(len(chart.categories))
    width = GROUP / len(shown)
    for number, values in enumerate(shown):
        left = places - GROUP / 2 + number * width
        axes.bar(left, values, width, align="edge", color=COLOURS[number])
    axes.set_xticks(places, [label(one) for one in chart.categories])
    axes.grid(visible=False, axis="x")
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: chart.axis.shown(value)))
    axes.set_xlabel(chart.label)
    axes.set_ylabel(chart.axis.label)
