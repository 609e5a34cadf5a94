"""Plain text for a terminal: results without the evidence of the whole report."""

import itertools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from hpcdl.report.formats.document import Document, Section
from hpcdl.report.formats.tables import Table

GAP: Final = 2
"""Spaces between two columns."""
HALF: Final = 2
"""Part of the terminal that a name may take whole."""
COLOURS: Final = {
    "1": r"^[A-Z][^a-z]+$",
    "31": r"\b(FAILED|WRONG|REGRESSED|MISSING)\b",
    "33": r"\b(DISTURBED|INCOMPLETE|DIVERGED|INCONCLUSIVE|disturbed)\b",
}
"""Parameters of ECMA-48's SGR (bold, red, yellow), and the words that have them: headings, failures, doubts."""


def columns() -> int:
    """Return the width of the terminal (or $COLUMNS); 80 without one."""
    return max(40, shutil.get_terminal_size().columns)


def coloured(text: str, *, terminal: bool | None = None) -> str:
    """Return text with colours if the output, or stdout, is a terminal, but not with $NO_COLOR (no-color.org)."""
    if not (sys.stdout.isatty() if terminal is None else terminal):
        return text
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    for code, words in COLOURS.items():
        text = re.sub(words, rf"\033[{code}m\g<0>\033[0m", text, flags=re.MULTILINE)
    return text


def plain(pages: Iterable[Document]) -> str:
    """Return documents as text; no line is longer than the terminal."""
    lines: list[str] = []
    for page in (page.visible() for page in pages):
        lines += [*_wrapped(page.title), *_wrapped(page.question), ""]
        for section in page.sections:
            lines += _section(section)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(section: Section) -> Iterator[str]:
    yield section.title.upper()
    for paragraph in section.head:
        yield from _wrapped(paragraph)
    for point in section.points:
        yield from _wrapped(f"- {point}", indent="  ")
    for table in section.tables:
        yield from _table(table)
    yield ""


def _table(table: Table) -> Iterator[str]:
    yield from _wrapped(table.title)
    yield from _wrapped(table.caption)
    groups: list[str] = []
    if table.is_grouped and (
        len({row[0] for row in table.rows}) < len(table.rows) or _excess(_widths(table, HALF))
    ):
        groups, table = [row[0] for row in table.rows], table.without(table.header[0])
    dropped, part = [], HALF
    while _excess(widths := _widths(table, part)) and table.dispensable:
        if table.dispensable[0] in table.answers and part == HALF:
            part *= 2  # names are broken before a column is left out that answers
            continue
        dropped.append(table.dispensable[0])
        table = table.without(dropped[-1])
    group = ""
    for name, row in itertools.zip_longest(["", *groups], (table.header, *table.rows), fillvalue=""):
        if name not in {"", group}:
            group = name
            yield from _wrapped(f"{group}:")
        cells = [_wrapped(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        for line in itertools.zip_longest(*cells, fillvalue=""):
            yield (" " * GAP).join(table.padded(line, widths)).rstrip()
    left_out = f"More columns on a wider terminal: {', '.join(reversed(dropped))}." if dropped else ""
    yield from _wrapped(" ".join(filter(None, (table.left_out, left_out))))


def _excess(widths: Sequence[int]) -> bool:
    """Return True if columns of these widths are together wider than the terminal."""
    return sum(widths) + GAP * (len(widths) - 1) > columns()


def _widths(table: Table, part: int) -> list[int]:
    """Return the width of each column: its longest cell, but less if all together do not fit into the terminal.

    Then headings over numbers are wrapped between words, then words are. Numbers, and names up to ``1 / part`` of
    the terminal, are never broken, so that the widths may exceed the terminal.
    """
    every = list(zip(table.header, *table.rows, strict=True))
    widths = [max(map(len, column)) for column in every]
    longest = [max(len(word) for cell in column for word in cell.split() or [""]) for column in every]
    whole = [max(map(len, [*head.split(), *cells])) for head, *cells in every]
    text = {
        place for place, (_, *cells) in enumerate(every) for cell in cells if " " in cell and cell[0].isalpha()
    }
    words = sorted({*range(table.left), *text})
    numbers = [place for place in range(len(every)) if place not in words]
    least = [min(width, (columns() - GAP) // part) for width in longest]
    for place in range(table.left, len(every)):  # numbers among words are never broken
        least[place] = max([least[place], *(len(cell) for cell in every[place][1:] if cell[:1].isdigit())])
    for among, floor in ((numbers, whole), (words, least)):
        while _excess(widths):
            wide = [place for place in among if widths[place] > floor[place]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _wrapped(text: str, width: int | None = None, indent: str = "") -> list[str]:
    """Break a text into lines; those of prose have at most 100 letters, on any terminal."""
    return textwrap.wrap(text, width or min(columns(), 100), subsequent_indent=indent, break_on_hyphens=False)
