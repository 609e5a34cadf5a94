"""Parts of a page: a document that its verdicts head, its sections, and their tables and charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.exit_codes import visible
from hpcdl.report.formats.cells import Number, digits, interval
from hpcdl.report.formats.tables import REST, Row, Table, joined, named
from hpcdl.report.formats.verdicts import Verdict

MAX_TABLES, MAX_ALIKE = 4, 2
"""Tables of a shortened section, at most; others are left out, or joined if more than so many are of one kind."""
MAX_SERIES, MAX_GREY = 6, 4
"""Lines of a chart with a colour of their own, and grey ones that its note names, at most."""
MAX_LINES, MAX_POINT = 40, 300
"""Lines of the verbatim text of a shortened section, and characters of its points, at most."""


@dataclass(frozen=True)
class Axis:
    """Label and scale of an axis."""

    label: str
    shown: Callable[[Number], str] = digits
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
    role: Literal["method", "baseline", "reference"] = "method"
    """A reference, such as the ideal line or a level, was not measured."""
    steps: bool = False
    """True for a step function, whose value stays until the next point."""


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
        lengths = (map(self.axis.shown, part) for part in self.parts.values())
        return [("", *self.parts), *zip(self.labels, *lengths, strict=True)]


@dataclass(frozen=True)
class Intervals:
    """One row per label: a value with its interval, beside a reference value if there is one."""

    title: str
    labels: Sequence[str]
    values: Sequence[tuple[float, Number, Number]]
    """Value and bounds of each label."""
    axis: Axis
    reference: float | None
    note: str = ""

    def numbers(self) -> list[Row]:
        """Return one row per label."""
        shown = self.axis.shown
        rows = zip(self.labels, self.values, strict=True)
        cells = [(label, shown(value), interval(low, high, shown)) for label, (value, low, high) in rows]
        return [("", self.axis.label, "95 %"), *cells]


@dataclass(frozen=True)
class HeatMap:
    """Values of pairs by row and column; NaN where there is none."""

    title: str
    labels: Sequence[str]
    """Of rows, and of columns."""
    label: str
    """Of both axes."""
    values: npt.NDArray[np.float64]
    axis: Axis
    """Of the values."""
    note: str = ""

    def numbers(self) -> list[Row]:
        """Return the values."""
        rows = zip(self.labels, self.values.tolist(), strict=True)
        cells = [(label, *map(self.axis.shown, values)) for label, values in rows]
        return [(f"{self.label} / {self.label}", *self.labels), *cells]


Chart = Lines | Bars | Intervals | HeatMap


def caption(chart: Chart) -> str:
    """Return the note of a chart, which ends with the names of the lines without a colour."""
    series = chart.series if isinstance(chart, Lines) else ()
    grey = [line.name for line in series if line.role == "method"][MAX_SERIES:]
    more = [f"{len(grey) - MAX_GREY} more"] if len(grey) > MAX_GREY else []
    return " ".join(filter(None, (chart.note, f"Grey: {'; '.join(grey[:MAX_GREY] + more)}." if grey else "")))


@dataclass(frozen=True)
class Section:
    """Paragraphs, then points, then charts (in HTML only), then tables, then a verbatim text."""

    title: str
    paragraphs: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    verbatim: str = ""
    folded: bool = False
    """True if the points of a page are shown on demand."""
    per: str = ""
    """Subject of each table, such as "setting", if the tables are of one kind: then a table can join them."""
    charts: Sequence[Chart] = ()
    badges: Sequence[str] = ()
    """Basis of the first paragraph, in words; it stands in a line below that."""

    def shortened(self, rows: int, points: int, whole: int = 0) -> Section:
        """Return the first points and rows of all tables together, or all rows if they are at most ``whole``."""
        shown = [p if len(p) <= MAX_POINT else f"{p[:MAX_POINT]} ..." for p in self.points[:points]]
        tables = named(self.tables) if self.per else self.tables
        every = sum(len(table.rows) for table in tables)
        rows = rows if every > whole else every * MAX_TABLES
        if self.per and len(tables) > MAX_ALIKE:
            tables = [joined(tables, self.per, rows)]
        kept = [table.first(max(1, rows // min(len(tables), MAX_TABLES))) for table in tables[:MAX_TABLES]]
        last = {note: number for number, table in enumerate(kept) for note in table.notes}
        kept = [
            replace(table, notes=[note for note in table.notes if last[note] == number][:points])
            for number, table in enumerate(kept)
        ]
        lines = self.verbatim.count("\n")
        counts = {
            "more": len(self.points) - len(shown),
            "more tables": len(tables) - len(kept),
            "lines of the suite": lines if lines > MAX_LINES else 0,
        }
        shown += [f"{count} {what} {REST}" for what, count in counts.items() if count]
        verbatim = "" if lines > MAX_LINES else self.verbatim
        return replace(self, points=shown, tables=kept, verbatim=verbatim)

    def answering(self, most: int) -> list[Table]:
        """Return one table with at most ``most`` rows: the first, or all joined if they are of one kind."""
        if self.per and len(self.tables) > 1:
            return [joined(named(self.tables), self.per, most).first(most)]
        return [table.first(most) for table in self.tables[:1]]

    @property
    def head(self) -> list[str]:
        """The paragraphs, with the line of badges after the first."""
        line = [" | ".join(self.badges)] if self.badges else []
        return [*self.paragraphs[:1], *line, *self.paragraphs[1:]]

    def visible(self) -> Section:
        """Return it without control characters in any text except :attr:`verbatim`."""
        return replace(
            self,
            title=visible(self.title),
            paragraphs=[*map(visible, self.paragraphs)],
            points=[*map(visible, self.points)],
            tables=[table.visible() for table in self.tables],
        )

    def __bool__(self) -> bool:
        return bool(self.paragraphs or self.points or self.charts or self.tables or self.verbatim)


@dataclass(frozen=True)
class Document:
    """A page; the first paragraph of its first section is the sentence of its first verdict."""

    title: str
    sections: Sequence[Section]
    question: str = ""
    verdicts: Sequence[Verdict] = ()
    """Answers, the most important first; colours and exit code follow from them."""
    main: str = ""
    """Title of the section with the main chart; else it is the first chart."""

    def visible(self) -> Document:
        """Return it without control characters in any text except :attr:`Section.verbatim`."""
        sections = [section.visible() for section in self.sections]
        return replace(self, title=visible(self.title), sections=sections, question=visible(self.question))


def headed(
    title: str,
    verdicts: Sequence[Verdict],
    sections: Sequence[Section],
    *,
    state: str = "",
    notes: Sequence[str] = (),
    badges: Sequence[str] = (),
) -> Document:
    """Return a document that begins with the sentences of its verdicts.

    ``state``: paragraph after the headline of the first of them; ``notes``: points after the others; ``badges``:
    what the headline rests on. Sections without content are left out.
    """
    first, *others = verdicts
    below = filter(None, (first.headline, state, first.cause, first.remedy))
    head = Section("Verdict", [*below], [*(verdict.sentence for verdict in others), *notes], badges=badges)
    return Document(title, [head, *filter(None, sections)], verdicts=verdicts)
