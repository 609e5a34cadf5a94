"""Tables: columns that know their importance, and shorter forms of a table for Markdown and a terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Literal, TypeVar

from hpcdl.exit_codes import visible
from hpcdl.report.formats.cells import NONE

MANY_ROWS: Final = 4
"""Rows from which on a table states in its caption the values that all rows share."""
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
        return self._of([number for number, name in enumerate(self.header) if name not in columns])

    def _of(self, columns: Sequence[int]) -> Table:
        header, *rows = (tuple(row[number] for number in columns) for row in (self.header, *self.rows))
        return replace(self, header=header, rows=rows, left=sum(number < self.left for number in columns))

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
        title, caption, left_out, *notes = map(visible, (self.title, self.caption, self.left_out, *self.notes))
        return replace(
            self, title=title, caption=caption, left_out=left_out, header=header, rows=rows, notes=notes
        )

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
        return replace(self.without(*shared), caption=f"The same in all {len(self.rows)} rows: {values}.")

    def first(self, most: int) -> Table:
        """Return ``most`` rows, the first, or the last if they ascend, and the :data:`MAX_COLUMNS` that matter."""
        table = self.without(*self.details).without_empty().without_constant()
        lines = [self.left_out] if self.left_out else []
        if len(self.rows) > most:
            which = f"The last {most}" if self.ascending else f"{most}"
            lines.append(f"{which} of {len(self.rows)} rows{self.order and ', '}{self.order}; all are {REST}.")
        surplus = table.surplus
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
