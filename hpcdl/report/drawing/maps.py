"""Heat maps, and tiles with names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.ticker import FuncFormatter, MaxNLocator

from hpcdl.report.drawing.canvas import label
from hpcdl.report.drawing.palette import COLOURS, GRID, PAPER, SERIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from hpcdl.report.charts import HeatMap, Tiles

TICKS: Final = 12
"""Labels of an axis, at most."""
TILE: Final = 0.3
"""Inches of a row of tiles."""


def height(rows: int) -> float:
    """Return the height of the drawing in inches."""
    return min(4.4, max(1.9, 0.9 + TILE * rows))


def draw_heat_map(chart: HeatMap, axes: Axes) -> None:
    """Draw values from 0 (dark) on in cividis, which colour-blind readers see alike."""
    image = axes.imshow(chart.values, vmin=0, cmap="cividis", aspect="auto", interpolation="none")
    _labels(chart.rows, chart.columns, axes)
    axes.grid(visible=False)
    axes.set_xlabel(chart.column_label)
    axes.set_ylabel(chart.row_label)
    figure = axes.get_figure()
    if figure is not None:
        bar: Any = figure.colorbar(image, ax=axes, pad=0.02)  # its stubs are wrong
        bar.solids.set_rasterized(True)
        bar.outline.set_visible(False)
        bar.ax.yaxis.set_major_locator(MaxNLocator(4))
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: chart.axis.shown(value)))
        bar.set_label(chart.axis.label)


def names(chart: Tiles) -> list[str]:
    """Return the names with a colour of their own: the most frequent ones."""
    every = [name for row in chart.names for name in row if name]
    return sorted(dict.fromkeys(every), key=lambda name: -every.count(name))[:SERIES]


def draw_tiles(chart: Tiles, axes: Axes) -> None:
    """Draw each name in its colour, with the name's number in the legend as text."""
    order = {name: number for number, name in enumerate(names(chart))}
    codes = np.array([[order.get(name, SERIES) if name else np.nan for name in row] for row in chart.names])
    colours = ListedColormap([*COLOURS, GRID])
    axes.pcolormesh(np.ma.masked_invalid(codes), cmap=colours, vmin=-0.5, vmax=SERIES + 0.5, edgecolor=PAPER)
    axes.invert_yaxis()
    for i, row in enumerate(chart.names):
        for j, name in enumerate(row):
            if name in order:
                text = f"{order[name] + 1}{chart.marks[i][j]}"
                axes.text(j + 0.5, i + 0.5, text, ha="center", va="center", color=PAPER, fontweight="bold")
    _labels(chart.rows, chart.columns, axes, 0.5)
    axes.grid(visible=False)
    axes.set_xlabel(chart.column_label)
    axes.set_ylabel(chart.row_label)


def _labels(rows: Sequence[str], columns: Sequence[str], axes: Axes, shift: float = 0.0) -> None:
    """Label every row and column, or of many every nth."""
    for labels, set_ticks in ((rows, axes.set_yticks), (columns, axes.set_xticks)):
        widest = max(map(len, labels), default=1)
        most = TICKS if set_ticks == axes.set_yticks else max(2, min(TICKS, 44 // (widest + 1)))
        step = -(-len(labels) // most)
        places = range(0, len(labels), step)
        set_ticks([place + shift for place in places], [label(labels[place]) for place in places])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
