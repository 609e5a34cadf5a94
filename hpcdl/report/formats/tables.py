"""Tables: columns that know their importance, and shorter forms of a table for Markdown and a terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from os.path import commonprefix
from typing import Any, Final, Generic, Literal, TypeVar

from hpcdl.exit_codes import visible
from hpcdl.report.formats.cells import NONE

MIN_SHARED: Final = 12
"""Characters with which all names begin, at least, if these stand above the table instead."""
INTERVAL: Final = " (95 %)"
"""End of the heading over values with intervals."""
MAX_COLUMNS: Final = 9
"""Columns of a shortened table, at most."""
REST: Final = "in report.html"
"""Place of all rows, points and lines."""

Row = tuple[str, ...]
"""Cells of a table; the first row of :meth:`Lines.numbers` is the header."""


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
        return self.of([number for number, name in enumerate(self.header) if name not in columns])

    def of(self, columns: Sequence[int]) -> Table:
        """Return the table with the columns at these places."""
        header, *rows = (tuple(row[number] for number in columns) for row in (self.header, *self.rows))
        left = sum(number < self.left for number in columns)
        return replace(self, header=header, rows=rows, left=left, is_grouped=self.is_grouped and 0 in columns)

    def padded(self, cells: Sequence[str], widths: Sequence[int]) -> list[str]:
        """Return the cells of a row as wide as their columns: numbers end at the right."""
        pairs = enumerate(zip(cells, widths, strict=True))
        return [cell.ljust(width) if number < self.left else cell.rjust(width) for number, (cell, width) in pairs]

    @property
    def key(self) -> str:
        """Header of the column that answers; else of the last one that is no detail."""
        shown = [name for name in self.header if name not in self.details]
        return next((name for name in self.answers if name in self.header), [*self.header[:1], *shown][-1])

    @property
    def dispensable(self) -> list[str]:
        """Headers of the columns that can be left out: details first, those that answer last."""
        numbers = [name for name in reversed(self.header[self.left :]) if name != self.key]
        return sorted(numbers, key=lambda name: (name in self.answers) - (name in self.details))

    def surplus(self, most: int = MAX_COLUMNS) -> list[str]:
        """Return the headers of the least important columns, details aside, beyond ``most``."""
        shown = [name for name in self.dispensable if name not in self.details]
        return shown[: max(0, len({*self.header} - {*self.details}) - most)]

    def with_details_last(self) -> Table:
        """Return the table with the columns first that a short table has."""
        later = {*self.details, *self.surplus()}
        return self.of(sorted(range(len(self.header)), key=lambda number: self.header[number] in later))

    def visible(self) -> Table:
        """Return it without control characters."""
        header, *rows = (tuple(map(visible, row)) for row in (self.header, *self.rows))
        title, caption, left_out, *notes = map(visible, (self.title, self.caption, self.left_out, *self.notes))
        return replace(
            self, title=title, caption=caption, left_out=left_out, header=header, rows=rows, notes=notes
        )

    def without_empty(self) -> Table:
        """Return the table without its empty columns."""
        columns = zip(self.header, zip(*self.rows, strict=True), strict=True)
        return self.without(*(name for name, cells in columns if set(cells) <= {NONE, ""}))

    def presented(self) -> Table:
        """Return the table as every format for readers shows it; presented again it stays the same.

        An interval stands beside its value, a reason that rows share below the table. Values, and parts of names,
        that all rows share stand above it. Empty columns go.
        """
        return self.with_intervals().without_empty().with_reasons_below().without_constant().with_short_names()

    def with_intervals(self) -> Table:
        """Return the table with each column "95 %" in the cells of its value: "0.951 (0.931 to 0.980)"."""
        for number, name in enumerate(self.header):
            value = name.removesuffix("95 %").rstrip() or self.header[number - 1]
            if name.endswith("95 %") and value in self.header[:number]:
                place = number - 1 if name == "95 %" else self.header.index(value)
                cells = [f"{row[place]} ({row[number]})".removesuffix(f" ({NONE})") for row in self.rows]
                kept = [other for other in range(len(self.header)) if other != number]
                return self.with_column(place, f"{value}{INTERVAL}", cells).of(kept).with_intervals()
        return self

    def narrowed(self, name: str) -> Table:
        """Return the table without the intervals of a column "step (95 %)", else without the column ``name``."""
        if not name.endswith(INTERVAL):
            return self.without(name)
        place = self.header.index(name)
        cells = [row[place].partition(" (")[0] for row in self.rows]
        return self.with_column(place, name.removesuffix(INTERVAL), cells)

    def with_column(self, place: int, new: str, cells: Sequence[str]) -> Table:
        """Return the table with another header and other cells at one place."""
        old = self.header[place]
        return replace(
            self,
            header=(*self.header[:place], new, *self.header[place + 1 :]),
            rows=[(*row[:place], cell, *row[place + 1 :]) for cell, row in zip(cells, self.rows, strict=True)],
            answers=[new if name == old else name for name in self.answers],
            details=[new if name == old else name for name in self.details],
        )

    def with_reasons_below(self) -> Table:
        """Return the table with "word: reason" as the word, and the reason below, if the word has one reason."""
        cells = [cell for row in self.rows for cell in row[self.left :]]
        shared = sorted({cell for cell in cells if ": " in cell and cells.count(cell) > 1})
        words = {cell: cell.partition(": ")[0] for cell in shared}
        several = [word for word in words.values() if sum(cell.startswith(word) for cell in {*cells}) > 1]
        words = {cell: word for cell, word in words.items() if word not in several}
        rows = [tuple(words.get(cell, cell) for cell in row) for row in self.rows]
        reasons = [f"{cell}." for cell in words]
        return replace(self, rows=rows, left_out=" ".join(filter(None, [*reasons, self.left_out])))

    def without_constant(self) -> Table:
        """Return the table with values that all rows share above it; one column of words and one other stay."""
        columns = list(zip(self.header, *self.rows, strict=True))
        shared = {name: cells[0] for name, *cells in columns if len(set(cells)) == 1}
        for names, kept in ((self.header[: self.left], self.header[0]), (self.header[self.left :], self.key)):
            if {*names} <= {*shared}:
                shared.pop(kept, None)
        if len(self.rows) < 2 or not shared:
            return self
        values = ", ".join(f"{name} {cell}" for name, cell in shared.items())
        rows = "both" if len(self.rows) == 2 else f"all {len(self.rows)}"
        caption = f"{self.caption} The same in {rows} rows: {values}.".strip()
        return replace(self.without(*shared), caption=caption)

    def with_short_names(self) -> Table:
        """Return the table with the parts that all names of its first column share above it, with a star."""
        names = [row[0] for row in self.rows]
        begin = commonprefix(names).rpartition("-")[0]  # noqa: RUF071 - names are no paths
        if len(begin) < MIN_SHARED or " " in begin.replace(", ", ",") or len({*names}) == 1:  # lists have spaces
            return self
        rests = [name[len(begin) + 1 :] for name in names]
        end = commonprefix([rest[::-1] for rest in rests])[::-1]  # noqa: RUF071
        end = end[end.find("-") :] if "-" in end else ""
        caption = f"{self.caption} {self.header[0]}: {begin}-*{end}.".strip()
        short = [rest.removesuffix(end) for rest in rests]
        return replace(self.with_column(0, self.header[0], short), caption=caption)

    def first(self, most: int) -> Table:
        """Return ``most`` rows, the first, or the last if they ascend, and the :data:`MAX_COLUMNS` that matter."""
        table = self.without(*self.details).presented()
        lines = [self.left_out] if self.left_out else []
        if len(self.rows) > most:
            which = f"The last {most}" if self.ascending else f"{most}"
            lines.append(f"{which} of {len(self.rows)} rows{self.order and ', '}{self.order}; all are {REST}.")
        surplus = table.surplus()
        lines += [f"report.html also has the columns: {', '.join(reversed(surplus))}."] if surplus else []
        rows = table.rows[-most:] if self.ascending else table.rows[:most]
        dropped = tuple(f"{name}:" for name in (*self.details, *surplus))
        notes = [note for note in self.notes if not note.casefold().startswith(dropped)]
        return replace(table, rows=rows, notes=notes, left_out=" ".join(lines)).without(*surplus)


def named(tables: Sequence[Table]) -> list[Table]:
    """Return tables with the names in their titles, such as A of "A: simulated, 5 epochs", if these differ."""
    names = [table.title.partition(": ")[0] for table in tables]
    if len(set(names)) < len(names):
        return list(tables)
    return [replace(table, title=name) for table, name in zip(tables, names, strict=True)]


def joined(tables: Sequence[Table], heading: str, most: int) -> Table:
    """Return one table with the first rows of each, the last of ascending ones; ``heading``: of their titles."""
    tables = [table.with_intervals() for table in tables]
    header = list(dict.fromkeys(name for table in tables for name in table.header))
    sizes = [len(table.rows) for table in tables]
    every = sum(sizes)
    each = max((n for n in range(1, most + 1) if sum(min(n, size) for size in sizes) <= most), default=1)
    rows = [
        (table.title, *(dict(zip(table.header, row, strict=True)).get(column, NONE) for column in header))
        for table in tables
        for row in (table.rows[-each:] if table.ascending else table.rows[:each])
    ][:most]
    which, order = "the last" if tables[0].ascending else "at most", tables[0].order
    rest = f"{len(rows)} of {every} rows, {which} {each} of each {heading}{order and ', '}{order}; all are {REST}."
    return replace(
        tables[0],
        title="",
        header=(heading, *header),
        rows=rows,
        left=tables[0].left + 1,
        notes=[note for note in tables[0].notes if all(note in table.notes for table in tables)],
        left_out=rest if every > len(rows) else "",
        details=[name for table in tables for name in table.details],
        answers=list(dict.fromkeys(name for table in tables for name in table.answers)),
        is_grouped=True,
    )


R_contra = TypeVar("R_contra", contravariant=True)
Importance = Literal["answer", "name", "usual", "detail"]
"""Of a column: one that answers (the value first, then its interval and its verdict), or that with the name tells
rows apart, is left out last; a detail is only in HTML."""


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
    details, answers, names = (
        [column.heading for column in columns if column.importance == importance]
        for importance in ("detail", "answer", "name")
    )
    header = tuple(column.heading for column in columns)
    made = Table(title, header, cells, details=details, answers=answers + names, **options).without_empty()
    stated = (column.note for column in columns if column.note and column.heading in made.header)
    return replace(made, notes=[*notes, *stated])
