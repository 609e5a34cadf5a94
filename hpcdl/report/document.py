"""What a report is made of, whatever it is rendered to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hpcdl.report.quantities import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Table:
    """Cells are finished text; ``left`` leading columns are words, the others are numbers."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: int = 1
    notes: list[str] = field(default_factory=list)

    def without(self, *columns: str) -> Table:
        """The same table without the columns that have these headers."""
        kept = [number for number, name in enumerate(self.header) if name not in columns]
        header, *rows = (tuple(row[number] for number in kept) for row in (self.header, *self.rows))
        return replace(self, header=header, rows=rows, left=sum(number < self.left for number in kept))

    def without_empty(self) -> Table:
        """The same table without the columns in which nothing is known."""
        columns = zip(self.header, zip(*self.rows, strict=True), strict=True)
        return self.without(*(name for name, cells in columns if set(cells) <= {NONE, ""}))


@dataclass(frozen=True)
class Section:
    """Paragraphs, then points, then tables, then a text to be shown as it is."""

    title: str
    paragraphs: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    verbatim: str = ""

    def brief(self, *columns: str) -> Section:
        """Its tables only, each without these columns and without notes."""
        return Section(self.title, tables=[replace(table.without(*columns), notes=[]) for table in self.tables])

    def __bool__(self) -> bool:
        """Whether there is anything under the title."""
        return bool(self.paragraphs or self.points or self.tables or self.verbatim)


@dataclass(frozen=True)
class Document:
    """A report of one run."""

    title: str
    sections: list[Section]
