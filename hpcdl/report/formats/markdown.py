"""Markdown that is also readable as it stands: columns are padded, long tables have their first rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpcdl.report.formats.cells import fenced, markdown, markdown_cell
from hpcdl.report.formats.document import Document, Section, Table


def written(pages: Iterable[Document]) -> str:
    """Return documents as one page."""
    lines: list[str] = []
    for page in (page.visible() for page in pages):
        lines += [f"# {markdown(page.title)}", ""]
        lines += [markdown(page.question), ""] if page.question else []
        for section in page.sections:
            lines += _section(section)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(section: Section) -> Iterator[str]:
    yield from (f"## {markdown(section.title)}", "")
    for paragraph in section.paragraphs:
        yield from (markdown(paragraph), "")
    if section.points:
        yield from (*(f"- {markdown(point)}" for point in section.points), "")
    for table in section.tables:
        yield from _table(table)
    if section.verbatim:
        yield from (fenced(section.verbatim, "toml"), "")


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield from (f"### {markdown(table.title)}", "")
    cells = [tuple(map(markdown_cell, row)) for row in (table.header, *table.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    left = [number < table.left for number in range(len(widths))]
    rule = "|".join(
        f":{'-' * width}-" if is_left else f"-{'-' * width}:" for width, is_left in zip(widths, left, strict=True)
    )
    for number, row in enumerate(cells):
        padded = (
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(row, widths, left, strict=True)
        )
        yield f"| {' | '.join(padded)} |"
        if number == 0:
            yield f"|{rule}|"
    yield ""
    for note in filter(None, (table.left_out, *table.notes)):
        yield from (markdown(note), "")
