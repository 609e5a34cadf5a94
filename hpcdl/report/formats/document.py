"""Parts of a page: a document that its verdicts head, its sections, and their tables and charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hpcdl.report.formats.cells import NONE, Number, digits, interval, visible
from hpcdl.report.formats.verdicts import Verdict

MAX_TABLES: Final = 4
"""Tables of a shortened section, at most; others are left out,"""
MAX_ALIKE: Final = 2
"""or joined if more than so many are of one kind."""
MANY_ROWS: Final = 4
"""Rows from which on a table states in its caption the values that all rows share."""
MAX_COLUMNS: Final = 9
"""Columns of a shortened table, at most."""
MAX_SERIES: Final = 6
"""Lines of a chart with a colour of their own; further ones are grey."""
MAX_GREY: Final = 4
"""Grey lines that a chart's note names, at most."""
MAX_LINES: Final = 40
"""Lines of the verbatim text of a shortened section, at most."""
MAX_POINT: Final = 300
"""Characters of its points, at most."""
REST: Final = "in report.html"
"""Place of all rows, points and lines."""


Row = tuple[str, ...]
"""Cells of a table; the first row of :meth:`Lines.numbers` is the header."""


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
    role: Literal["method", "ceiling", "reference"] = "method"
    """A reference, such as the ideal line or a level, was not measured."""
    steps: bool = False
    """True for a step function, whose value stays until the next point."""
    names: Sequence[str] = ()
    """Names of the points, which no line joins then."""


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


def caption(chart: Chart) -> str:
    """Return the note of a chart, which ends with the names of the lines without a colour."""
    series = chart.series if isinstance(chart, Lines) else ()
    grey = [line.name for line in series if line.role == "method"][MAX_SERIES:]
    more = [f"{len(grey) - MAX_GREY} more"] if len(grey) > MAX_GREY else []
    return " ".join(filter(None, (chart.note, f"Grey: {'; '.join(grey[:MAX_GREY] + more)}." if grey else "")))


@dataclass(frozen=True)
class Table:
    """Cells are finished text; ``left`` leading columns are words, the others are numbers."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: int = 1
    notes: list[str] = field(default_factory=list)
    order: str = ""
    """Order of the rows in words, such as "largest first"; the first are the ones to read."""
    ascending: bool = False
    """True where the last rows are the ones to read."""
    caption: str = ""
    """Line above the table: the values that all of its rows share."""
    left_out: str = ""
    """Line below it about the rows and columns that a shortened table leaves out."""
    details: Collection[str] = ()
    """Headers of the columns that only a page in HTML shows."""
    is_grouped: bool = False
    """True if the first column names groups, which a terminal shows as headings over several rows."""
    answers: Sequence[str] = ()
    """Headers of the columns that answer: the value, which a narrow screen keeps in sight, its interval and its
    verdict."""

    def without(self, *columns: str) -> Table:
        """Return the table without the columns that have these headers."""
        return self._of([number for number, name in enumerate(self.header) if name not in columns])

    def _of(self, columns: Sequence[int]) -> Table:
        header, *rows = (tuple(row[number] for number in columns) for row in (self.header, *self.rows))
        return replace(self, header=header, rows=rows, left=sum(number < self.left for number in columns))

    @property
    def key(self) -> str:
        """Header of the column that answers; else of the last one that is no detail."""
        shown = [name for name in self.header if name not in self.details]
        return next((name for name in self.answers if name in self.header), [*self.header[:1], *shown][-1])

    @property
    def dispensable(self) -> list[str]:
        """Headers of the columns that can be left out, the least important first: those that answer come last."""
        numbers = [name for name in reversed(self.header[self.left :]) if name != self.key]
        return sorted(numbers, key=lambda name: name in self.answers)

    @property
    def surplus(self) -> list[str]:
        """Headers of the least important columns, details aside, beyond :data:`MAX_COLUMNS`."""
        shown = [name for name in self.dispensable if name not in self.details]
        return shown[: max(0, len({*self.header} - {*self.details}) - MAX_COLUMNS)]

    def with_details_last(self) -> Table:
        """Return the table with the columns first that a short table has."""
        later = {*self.details, *self.surplus}
        return self._of(sorted(range(len(self.header)), key=lambda number: self.header[number] in later))

    def visible(self) -> Table:
        """Return it without control characters."""
        header, *rows = (tuple(map(visible, row)) for row in (self.header, *self.rows))
        notes = [*map(visible, self.notes)]
        return replace(self, title=visible(self.title), header=header, rows=rows, notes=notes)

    def without_empty(self) -> Table:
        """Return the table without its empty columns."""
        columns = zip(self.header, zip(*self.rows, strict=True), strict=True)
        return self.without(*(name for name, cells in columns if set(cells) <= {NONE, ""}))

    def without_constant(self) -> Table:
        """Return the table with values that all rows share in its caption; a column of words and the key stay."""
        columns = list(zip(self.header, *self.rows, strict=True))
        shared = {name: cells[0] for name, *cells in columns if name != self.key and len(set(cells)) == 1}
        if {*self.header[: self.left]} <= {*shared}:
            del shared[self.header[0]]
        if len(self.rows) < MANY_ROWS or not shared:
            return self
        values = ", ".join(f"{name} {cell}" for name, cell in shared.items())
        return replace(self.without(*shared), caption=f"All {len(self.rows)} rows: {values}.")

    def first(self, most: int) -> Table:
        """Return the first rows, at most ``most``, and the most important columns, at most :data:`MAX_COLUMNS`."""
        table = self.without(*self.details).without_empty().without_constant()
        lines = [self.left_out] if self.left_out else []
        if len(self.rows) > most:
            lines.append(f"{most} of {len(self.rows)} rows{self.order and ', '}{self.order}; all are {REST}.")
        surplus = table.surplus
        lines += [f"More columns {REST}: {', '.join(reversed(surplus))}."] if surplus else []
        return replace(table, rows=table.rows[:most], left_out=" ".join(lines)).without(*surplus)


def named(tables: Sequence[Table]) -> list[Table]:
    """Return tables with the names in their titles, such as A of "A: simulated, 5 epochs", if these differ."""
    names = [table.title.partition(": ")[0] for table in tables]
    if len(set(names)) < len(names):
        return list(tables)
    return [replace(table, title=name) for table, name in zip(tables, names, strict=True)]


def joined(tables: Sequence[Table], heading: str, most: int) -> Table:
    """Return one table with the first rows of each; the first column, ``heading``, has their titles."""
    header = list(dict.fromkeys(name for table in tables for name in table.header))
    every = sum(len(table.rows) for table in tables)
    each = most if every <= most else max(1, most // len(tables))
    rows = [
        (table.title, *(dict(zip(table.header, row, strict=True)).get(column, NONE) for column in header))
        for table in tables
        for row in table.rows[:each]
    ][:most]
    order = tables[0].order
    rest = f"{len(rows)} of {every} rows, at most {each} of each {heading}{order and ', '}{order}; all are {REST}."
    notes = [note for note in tables[0].notes if all(note in table.notes for table in tables)]
    left_out = rest if every > len(rows) else ""
    return replace(
        tables[0],
        title="",
        header=(heading, *header),
        rows=rows,
        left=tables[0].left + 1,
        notes=notes,
        left_out=left_out,
        details=[name for table in tables for name in table.details],
        answers=list(dict.fromkeys(name for table in tables for name in table.answers)),
        is_grouped=True,
    )


R_contra = TypeVar("R_contra", contravariant=True)
Importance = Literal["answer", "usual", "detail"]
"""Of a column: one that answers (the value first, then its interval and its verdict) is never left out; a detail
is only in HTML."""


@dataclass(frozen=True)
class Column(Generic[R_contra]):
    """A column of a table whose rows are made of objects of one type."""

    heading: str
    cell: Callable[[R_contra], str]
    note: str = ""
    """Stated below the table if the column is not empty."""
    importance: Importance = "usual"


def table(
    columns: Sequence[Column[R_contra]],
    rows: Iterable[R_contra],
    title: str = "",
    notes: Iterable[str] = (),
    **options: Any,
) -> Table:
    """Return a table without its empty columns; ``notes`` precede those of the columns. ``options``: of Table."""
    cells = [tuple(column.cell(row) for column in columns) for row in rows]
    details, answers = (
        [column.heading for column in columns if column.importance == importance]
        for importance in ("detail", "answer")
    )
    header = tuple(column.heading for column in columns)
    made = Table(title, header, cells, details=details, answers=answers, **options).without_empty()
    stated = (column.note for column in columns if column.note and column.heading in made.header)
    return replace(made, notes=[*notes, *stated])


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
    """What the first paragraph rests on, in words; it stands in a line below that."""

    def shortened(self, rows: int, points: int, whole: int = 0) -> Section:
        """Return the first rows of all tables together, the first points and notes; equal notes are stated once.

        Tables with ``whole`` rows together, or fewer, keep all.
        """
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
