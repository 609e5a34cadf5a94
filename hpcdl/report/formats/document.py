"""Parts of a report: documents, sections and tables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hpcdl.report.formats.cells import NONE, visible

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
    left_out: str = ""
    """Line about the rows that a shortened table leaves out."""

    def without(self, *columns: str) -> Table:
        """Return the table without the columns that have these headers."""
        kept = [number for number, name in enumerate(self.header) if name not in columns]
        header, *rows = (tuple(row[number] for number in kept) for row in (self.header, *self.rows))
        return replace(self, header=header, rows=rows, left=sum(number < self.left for number in kept))

    def visible(self) -> Table:
        """Return it without control characters."""
        header, *rows = (tuple(map(visible, row)) for row in (self.header, *self.rows))
        notes = [*map(visible, self.notes)]
        return Table(visible(self.title), header, rows, self.left, notes, visible(self.left_out))

    def without_empty(self) -> Table:
        """Return the table without its empty columns."""
        columns = zip(self.header, zip(*self.rows, strict=True), strict=True)
        return self.without(*(name for name, cells in columns if set(cells) <= {NONE, ""}))


@dataclass(frozen=True)
class Section:
    """Paragraphs, then points, then tables, then a verbatim text."""

    title: str
    paragraphs: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    verbatim: str = ""
    folded: bool = False
    """True if the points of a page are shown on demand."""
    most_lines: int | None = None
    """Lines on a terminal, at most, the heading included; further points are left out."""

    def brief(self, *columns: str) -> Section:
        """Return its tables only, each without these columns and without notes."""
        return Section(self.title, tables=[replace(table.without(*columns), notes=[]) for table in self.tables])

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
        """True if anything follows the title."""
        return bool(self.paragraphs or self.points or self.tables or self.verbatim)


@dataclass(frozen=True)
class Document:
    """A report of one run."""

    title: str
    sections: list[Section]
    question: str = ""
    """The suite's question."""

    def visible(self) -> Document:
        """Return it without control characters in any text except :attr:`Section.verbatim`."""
        sections = [section.visible() for section in self.sections]
        return Document(visible(self.title), sections, visible(self.question))
