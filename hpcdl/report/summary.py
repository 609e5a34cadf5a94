"""Plain text for a terminal: results without the evidence of the whole report."""

from __future__ import annotations

import itertools
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hpcdl.report.contents import summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hpcdl.report.document import Document, Section, Table
    from hpcdl.report.findings import Findings

GAP: Final = 2
"""Spaces between two columns."""
COLUMNS: Final = 80
"""Length of the longest line."""
LONGEST: Final = 4
"""Lines of a text, at most, in a section of limited length."""
WORDS: Final = 12
"""Longer words, such as names with settings, may be broken."""


def render(found: Sequence[Findings]) -> str:
    """Return the summary of each run; no line is longer than 80 columns."""
    return plain(map(summary, found))


def plain(pages: Iterable[Document]) -> str:
    """Return documents as text."""
    lines: list[str] = []
    for page in (one.visible() for one in pages):
        lines += [*_wrapped(page.title), *_wrapped(page.question), ""]
        for section in page.sections:
            lines += _section(section)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(section: Section) -> list[str]:
    """Return the lines of a section; points that its limit leaves out are counted in the last line."""
    if section.most_lines is None or len(lines := list(_lines(section))) - 1 <= section.most_lines:
        return list(_lines(section))
    for shown in range(len(section.points), -1, -1):
        rest = f"{len(section.points) - shown} more in report.md"
        lines = list(_lines(replace(section, points=[*section.points[:shown], rest])))
        if len(lines) - 1 <= section.most_lines:  # an empty line follows
            break
    return lines


def _lines(section: Section) -> Iterator[str]:
    yield section.title.upper()
    most = None if section.most_lines is None else LONGEST
    for paragraph in section.paragraphs:
        yield from _wrapped(paragraph, most=most)
    for point in section.points:
        yield from _wrapped(f"- {point}", most=most, indent="  ")
    for table in section.tables:
        yield from _table(table)
    yield ""


def _table(table: Table) -> Iterator[str]:
    yield from _wrapped(table.title)
    widths = _widths(table)
    for row in (table.header, *table.rows):
        cells = [_wrapped(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        for line in itertools.zip_longest(*cells, fillvalue=""):
            words = (
                part.ljust(width) if number < table.left else part.rjust(width)
                for number, (part, width) in enumerate(zip(line, widths, strict=True))
            )
            yield (" " * GAP).join(words).rstrip()
    yield from _wrapped(table.left_out)


def _widths(table: Table) -> list[int]:
    """Return the width of each column: its longest cell, but all together fit into :data:`COLUMNS`.

    As far as is needed headings over numbers are wrapped between words, then words are, then numbers, and in the
    end any word is broken.
    """
    columns = list(zip(table.header, *table.rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    longest = [max(len(word) for cell in column for word in cell.split() or [""]) for column in columns]
    whole = [max(map(len, [*head.split(), *cells])) for head, *cells in columns]
    words, numbers = range(table.left), range(table.left, len(columns))
    least = [min(width, WORDS) if place in words else width for place, width in enumerate(longest)]
    every = range(len(columns))
    for among, floor in ((numbers, whole), (words, least), (every, least), (every, [1] * len(columns))):
        while sum(widths) + GAP * (len(widths) - 1) > COLUMNS:
            wide = [place for place in among if widths[place] > floor[place]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _wrapped(text: str, width: int = COLUMNS, most: int | None = None, indent: str = "") -> list[str]:
    """Return the lines of a text, at most ``most`` of them; ``indent`` begins all but the first."""
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_on_hyphens=False, max_lines=most, placeholder=" ..."
    )
