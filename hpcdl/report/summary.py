"""Plain text for a terminal: what the run showed, without the evidence that the whole report holds."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from hpcdl.report.page import summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hpcdl.report.document import Document, Section, Table
    from hpcdl.trace.run import Run

COLUMNS: Final = 120


def render(runs: Sequence[Run]) -> str:
    """Wrapped at 120 columns; a table is as wide as it must be."""
    return plain([summary(run) for run in runs])


def plain(pages: Iterable[Document]) -> str:
    """The same of documents."""
    lines: list[str] = []
    for page in pages:
        lines += [page.title, ""]
        for section in page.sections:
            lines += _section(section)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(section: Section) -> Iterator[str]:
    yield section.title.upper()
    for paragraph in section.paragraphs:
        yield from textwrap.wrap(paragraph, COLUMNS, break_on_hyphens=False)
    for point in section.points:
        yield from textwrap.wrap(
            point, COLUMNS, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
        )
    for table in section.tables:
        yield from _table(table)
    yield ""


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield table.title
    widths = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
    for row in (table.header, *table.rows):
        cells = (
            cell.ljust(width) if number < table.left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
