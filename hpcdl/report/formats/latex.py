"""A LaTeX document; its tables are ready to be taken into another one that loads booktabs and longtable."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from hpcdl.report.formats.cells import visible
from hpcdl.report.formats.document import Document, Section, Table

HEAD: Final = r"""\documentclass[a4paper,10pt]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[margin=18mm,landscape]{geometry}
\usepackage{booktabs,longtable,array}
\setlength{\parindent}{0pt}
\setlength{\parskip}{4pt}
\setlength{\tabcolsep}{3pt}
\begin{document}"""
SPECIAL: Final = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "-": "{-}",
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    "[": "{[}",
    "]": "{]}",
}
"""Characters that LaTeX, or its ligatures, would change."""
WIDE: Final = 40
"""Characters of a column beyond which its cells are wrapped."""


def written(pages: Iterable[Document]) -> str:
    """Return documents as one document of LaTeX."""
    lines = [HEAD]
    for page in pages:
        lines += _page(page.visible())
    return "\n".join([*lines, r"\end{document}", ""])


def escaped(text: str) -> str:
    """Return text in which LaTeX sees text only; characters outside of Latin-1 are given by their numbers."""
    plain = "".join(
        character if ord(character) < 256 else f"U+{ord(character):04X}" for character in visible(text)
    )
    return re.sub(r"""[\\&%$#_{}~^<>|"`'\[\]-]""", lambda character: SPECIAL[character[0]], plain)


def _page(page: Document) -> Iterator[str]:
    yield rf"\section*{{{escaped(page.title)}}}"
    if page.question:
        yield rf"\emph{{{escaped(page.question)}}}"
    for section in page.sections:
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    yield rf"\subsection*{{{escaped(section.title)}}}"
    for paragraph in section.paragraphs:
        yield from (escaped(paragraph), "")
    if section.points:
        yield r"\begin{itemize}"
        yield from (rf"\item {escaped(point)}" for point in section.points)
        yield r"\end{itemize}"
    for table in section.tables:
        yield from _table(table)
    if section.verbatim:
        yield r"{\ttfamily\small\raggedright\obeylines"
        yield from (escaped(line) or r"\strut" for line in section.verbatim.rstrip("\n").split("\n"))
        yield "}"


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield rf"\paragraph*{{{escaped(table.title)}}}\mbox{{}}"
    widest = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
    columns = "".join(_column(number < table.left, width) for number, width in enumerate(widest))
    yield r"{\scriptsize"
    yield rf"\begin{{longtable}}[l]{{@{{}}{columns}@{{}}}}"
    yield rf"\toprule {_row(table.header)} \midrule\endhead"
    yield from map(_row, table.rows)
    yield r"\bottomrule"
    yield r"\end{longtable}}"
    for note in table.notes:
        yield from (rf"{{\footnotesize {escaped(note)}}}", "")


def _column(is_left: bool, width: int) -> str:
    if width > WIDE:
        return r">{\raggedright\arraybackslash}p{55mm}"
    return "l" if is_left else "r"


def _row(cells: Sequence[str]) -> str:
    return " & ".join(map(escaped, cells)) + r" \\"
