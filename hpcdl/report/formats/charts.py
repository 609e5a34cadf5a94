"""Charts: numbers and words of a figure; :mod:`hpcdl.report.formats.figure` makes SVG of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.report.formats.cells import NONE, Number, digits, interval

Row = tuple[str, ...]
"""Cells of a table; the first row of :meth:`Lines.numbers` is the header."""


@dataclass(frozen=True)
class Axis:
    """Label and scale of an axis."""

    label: str
    shown: Callable[[Number], str] = digits
    """Text of a value."""
    base: int = 0
    """Base of a logarithmic scale; 0: linear."""
    ticks: Sequence[float] = ()
    """Values with a label; empty: chosen by the drawing."""


class Point(NamedTuple):
    """A value with its 95 % interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    name: str
    points: Sequence[Point]
    role: Literal["method", "ceiling", "reference"] = "method"
    """A reference, such as the ideal line, was not measured."""


@dataclass(frozen=True)
class Lines:
    """Lines over a common axis; the series that come first are the ones to tell apart."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    note: str = ""

    def numbers(self) -> list[Row]:
        """Return one row per point."""
        points = [(line.name, point) for line in self.series for point in line.points]
        rows = [
            (name, self.x.shown(x), self.y.shown(y), interval(low, high, self.y.shown))
            for name, (x, y, low, high) in points
        ]
        return [("line", self.x.label, self.y.label, "95 %"), *rows]


@dataclass(frozen=True)
class Bars:
    """One horizontal bar per label, stacked of parts."""

    title: str
    labels: Sequence[str]
    parts: Mapping[str, Sequence[float]]
    """Lengths by the name of the part; one per label."""
    axis: Axis
    note: str = ""

    def numbers(self) -> list[Row]:
        """Return one row per bar."""
        lengths = zip(*self.parts.values(), strict=True)
        rows = zip(self.labels, (map(self.axis.shown, row) for row in lengths), strict=True)
        return [("", *self.parts), *((label, *row) for label, row in rows)]


@dataclass(frozen=True)
class Intervals:
    """One row per label: a value with its interval, beside a reference value."""

    title: str
    labels: Sequence[str]
    values: Sequence[tuple[float, Number, Number]]
    """Value and bounds of each label."""
    axis: Axis
    reference: float
    note: str = ""

    def numbers(self) -> list[Row]:
        """Return one row per label."""
        shown = self.axis.shown
        rows = zip(self.labels, self.values, strict=True)
        cells = [(label, shown(value), interval(low, high, shown)) for label, (value, low, high) in rows]
        return [("", self.axis.label, "95 %"), *cells]


@dataclass(frozen=True)
class HeatMap:
    """Values by row and column; NaN where there is none."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    row_label: str
    column_label: str
    values: npt.NDArray[np.float64]
    axis: Axis
    """Of the values."""
    note: str = ""

    def numbers(self) -> list[Row]:
        """Return the values."""
        rows = [
            (label, *(self.axis.shown(value) if math.isfinite(value) else NONE for value in values))
            for label, values in zip(self.rows, self.values.tolist(), strict=True)
        ]
        return [(f"{self.row_label} / {self.column_label}", *self.columns), *rows]


Chart = Lines | Bars | Intervals | HeatMap
