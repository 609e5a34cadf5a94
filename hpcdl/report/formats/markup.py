"""Markdown, and LaTeX whose tables are ready for another document that loads booktabs and longtable."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from hpcdl.exit_codes import visible
from hpcdl.report.formats.cells import fenced, markdown_cell
from hpcdl.report.formats.cells import markdown as escaped
from hpcdl.report.formats.document import Document, Section
from hpcdl.report.formats.tables import Table


def markdown(pages: Iterable[Document]) -> str:
    """Return documents as one page that is also readable as it stands: columns are padded."""
    lines: list[str] = []
    for page in (page.visible() for page in pages):
        lines += [f"# {escaped(page.title)}", ""]
        lines += [escaped(page.question), ""] if page.question else []
        for section in page.sections:
            lines += _markdown_section(section)
    return "\n".join(lines).rstrip("\n") + "\n"


def _markdown_section(section: Section) -> Iterator[str]:
    yield from (f"## {escaped(section.title)}", "")
    for paragraph in section.head:
        yield from (escaped(paragraph), "")
    if section.points:
        yield from (*(f"- {escaped(point)}" for point in section.points), "")
    for table in section.tables:
        yield from _markdown_table(table)
    if section.verbatim:
        yield from (fenced(section.verbatim, "toml"), "")


def markdown_table(table: Table) -> str:
    """Return one table with its title and notes."""
    return "\n".join(_markdown_table(table)).rstrip("\n") + "\n"


def _markdown_table(table: Table) -> Iterator[str]:
    if table.title:
        yield from (f"### {escaped(table.title)}", "")
    if table.caption:
        yield from (escaped(table.caption), "")
    cells = [tuple(map(markdown_cell, row)) for row in (table.header, *table.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    dashes = ["-" * width for width in widths]
    rule = [f":{line}-" if number < table.left else f"-{line}:" for number, line in enumerate(dashes)]
    head, *rows = (f"| {' | '.join(table.padded(row, widths))} |" for row in cells)
    yield from (head, f"|{'|'.join(rule)}|", *rows, "")
    for note in filter(None, (table.left_out, *table.notes)):
        yield from (escaped(note), "")


PACKAGES: Final = "{booktabs,longtable,array}"
HEAD: Final = (
    r"""\documentclass[a4paper,10pt]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[margin=18mm,landscape]{geometry}
\usepackage"""
    + PACKAGES
    + r"""
\setlength{\parindent}{0pt}
\setlength{\parskip}{4pt}
\setlength{\tabcolsep}{3pt}
\begin{document}"""
)
NAMED: Final = (
    *("\\backslash", "~asciitilde", "^asciicircum", "<less", ">greater", "|bar"),
    *('"quotedbl', "`asciigrave", "'quotesingle"),
)
SPECIAL: Final = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {character: f"{{{character}}}" for character in "-[]"}
    | {pair[0]: rf"\text{pair[1:]}{{}}" for pair in NAMED}
)
"""Characters that LaTeX, or its ligatures, would change."""
WIDE: Final = 40
"""Characters of a column beyond which its cells are wrapped."""


def latex(pages: Iterable[Document]) -> str:
    """Return documents as one document of LaTeX."""
    lines = [HEAD]
    for page in (page.visible() for page in pages):
        lines += [rf"\section*{{{latex_text(page.title)}}}"]
        lines += [rf"\emph{{{latex_text(page.question)}}}"] if page.question else []
        for section in page.sections:
            lines += _latex_section(section)
    return "\n".join([*lines, r"\end{document}", ""])


def latex_table(table: Table) -> str:
    r"""Return one table, without a preamble, for a document that loads the packages which the first line names."""
    return "\n".join([f"% \\usepackage{PACKAGES}", *_latex_table(table), ""])


def latex_text(text: str) -> str:
    """Return text in which LaTeX sees text only; characters outside of Latin-1 are given by their numbers."""
    plain = re.sub(r"[^\0-\xff]", lambda character: f"U+{ord(character[0]):04X}", visible(text))
    return plain.translate(SPECIAL)


def _latex_section(section: Section) -> Iterator[str]:
    yield rf"\subsection*{{{latex_text(section.title)}}}"
    for paragraph in section.head:
        yield from (latex_text(paragraph), "")
    if section.points:
        yield r"\begin{itemize}"
        yield from (rf"\item {latex_text(point)}" for point in section.points)
        yield r"\end{itemize}"
    for table in section.tables:
        yield from _latex_table(table)
    if section.verbatim:
        yield r"{\ttfamily\small\raggedright\obeylines"
        yield from (latex_text(line) or r"\strut" for line in section.verbatim.rstrip("\n").split("\n"))
        yield "}"


def _latex_table(table: Table) -> Iterator[str]:
    if table.title:
        yield rf"\paragraph*{{{latex_text(table.title)}}}\mbox{{}}"
    widest = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
    columns = "".join(
        r">{\raggedright\arraybackslash}p{55mm}" if width > WIDE else "l" if number < table.left else "r"
        for number, width in enumerate(widest)
    )
    yield r"{\scriptsize"
    yield rf"\begin{{longtable}}[l]{{@{{}}{columns}@{{}}}}"
    yield rf"\toprule {_latex_row(table.header)} \midrule\endhead"
    yield from map(_latex_row, table.rows)
    yield r"\bottomrule"
    yield r"\end{longtable}}"
    for note in table.notes:
        yield from (rf"{{\footnotesize {latex_text(note)}}}", "")


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"
