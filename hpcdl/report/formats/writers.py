"""Writers of texts: Markdown, LaTeX (for booktabs and longtable), terminal, CSV, JSON, JUnit and OpenMetrics."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import re
import shutil
import socket
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree as ET

from hpcdl.exit_codes import FAILED, INCONCLUSIVE, visible
from hpcdl.report.formats.cells import NONE, fenced, markdown_cell, unbroken
from hpcdl.report.formats.cells import markdown as escaped
from hpcdl.report.formats.document import Document, Section
from hpcdl.report.formats.tables import INTERVAL, Table
from hpcdl.report.formats.verdicts import Verdict


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
    table = table.presented()
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
    | {"\N{NO-BREAK SPACE}": "~"}
)
"""Characters that LaTeX, or its ligatures, would change."""
MAX_LATEX: Final = 7
"""Columns of a table for a page of a paper, at most."""
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
    r"""Return one table, without a preamble, for a document that loads the packages which the first line names.

    It has the columns that matter most, :data:`MAX_LATEX` at most.
    """
    table = table.without(*table.details).presented()
    table = table.without(*table.surplus(MAX_LATEX))
    return "\n".join([f"% \\usepackage{PACKAGES}", *_latex_table(table), ""])


def latex_text(text: str) -> str:
    """Return text in which LaTeX sees text only; characters outside of Latin-1 are given by their numbers."""
    plain = re.sub(r"[^\0-\xff]", lambda character: f"U+{ord(character[0]):04X}", visible(text))
    return unbroken(plain).translate(SPECIAL)


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
    table = table.presented()
    if table.title:
        yield rf"\noindent\textbf{{{latex_text(table.title)}}}\par"
    if table.caption:
        yield rf"{{\footnotesize\noindent {latex_text(table.caption)}\par}}"
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
    for note in filter(None, (table.left_out, *table.notes)):
        yield from (rf"{{\footnotesize {latex_text(note)}}}", "")


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"


FORMULA: Final = ("=", "+", "-", "@")
"""First characters of a formula."""


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return one line per row in full precision; an unknown value is an empty cell."""
    import pandas as pd  # late: the other formats do not need it

    cells = [{_text(name): _cell(value) for name, value in row.items()} for row in rows]
    return pd.DataFrame(cells, dtype=object).to_csv(index=False, lineterminator="\n")


def table(shown: Table) -> str:
    """Return the cells of a table as they are shown; an unknown value is an empty cell."""
    import pandas as pd  # late, as above

    header, *rows = ([_text(cell) if cell != NONE else "" for cell in row] for row in (shown.header, *shown.rows))
    return pd.DataFrame(rows, columns=header, dtype=object).to_csv(index=False, lineterminator="\n")


def _cell(value: object) -> object:
    if isinstance(value, dict):
        return json.dumps(value)
    return _text(value) if isinstance(value, str) else value


def _text(value: str) -> str:
    """Return text that no spreadsheet takes for a formula: one that could be begins with an apostrophe."""
    text = visible(value)
    return f"'{text}" if text.startswith(FORMULA) else text


def json_text(document: Mapping[str, object]) -> str:
    """Return the document with the number of its schema, as ASCII text; a number that is not finite is null."""
    text = json.dumps({"schema": 1, **document})
    return json.dumps(json.loads(text, parse_constant=lambda _name: None), indent=1) + "\n"


class TestCase(NamedTuple):
    """A test case; it passes without ``failures`` and ``skipped``."""

    classname: str
    name: str
    failures: Sequence[Verdict] = ()
    skipped: Sequence[Verdict] = ()

    @classmethod
    def of(cls, classname: str, name: str, verdicts: Sequence[Verdict]) -> TestCase:
        """Return a test case that fails, or is skipped, by the exit codes of its verdicts."""
        failures, skipped = (
            [verdict for verdict in verdicts if verdict.row.code == code] for code in (FAILED, INCONCLUSIVE)
        )
        return cls(classname, name, failures, skipped)


class TestSuite(NamedTuple):
    """Test cases that belong together."""

    name: str
    cases: Sequence[TestCase]
    output: Sequence[str]


def junit(suites: Sequence[TestSuite], now: dt.datetime) -> str:
    """Return JUnit XML, which continuous-integration systems show; ``now`` is the time in UTC.

    Attributes and order of the elements fit the schema of Ant's JUnit task, which is the strictest of those in
    use (https://github.com/windyroad/JUnit-Schema).
    """
    root = ET.Element("testsuites")
    for number, suite in enumerate(suites):
        element = ET.SubElement(
            root,
            "testsuite",
            name=visible(suite.name),
            package="hpcdl",
            id=str(number),
            timestamp=now.strftime("%Y-%m-%dT%H:%M:%S"),
            hostname=visible(socket.gethostname()),
            tests=str(len(suite.cases)),
            failures=str(sum(bool(case.failures) for case in suite.cases)),
            errors="0",
            skipped=str(sum(bool(case.skipped) and not case.failures for case in suite.cases)),
            time="0",
        )
        ET.SubElement(element, "properties")
        for case in suite.cases:
            names = {"classname": visible(case.classname or "hpcdl"), "name": visible(case.name), "time": "0"}
            test = ET.SubElement(element, "testcase", names)
            lines = [visible(verdict.sentence) for verdict in case.failures or case.skipped]
            if case.failures:
                failure = ET.SubElement(test, "failure", type=case.failures[0].word, message=lines[0])
                failure.text = "\n".join(lines)
            elif case.skipped:
                ET.SubElement(test, "skipped", message=lines[0])
        ET.SubElement(element, "system-out").text = "\n".join(map(visible, suite.output))
        ET.SubElement(element, "system-err")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


class Gauge(NamedTuple):
    """A metric that may rise and fall, by its labels."""

    name: str
    text: str
    samples: Sequence[tuple[Mapping[str, str], float]]


def openmetrics(gauges: Sequence[Gauge]) -> str:
    """Return OpenMetrics text, which Prometheus reads.

    Only gauges: the text-file collector of Prometheus' node exporter reads an older format, which has them alike.
    Rules of names and escapes: https://prometheus.io/docs/specs/om/open_metrics_spec/
    """
    lines = []
    for name, text, samples in gauges:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        for labels, value in samples:
            inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
            lines.append(f"{name}{{{inside}}} {value:.9g}" if inside else f"{name} {value:.9g}")
    return "\n".join([*lines, "# EOF"]) + "\n"


def _escaped(text: str) -> str:
    return visible(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


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
    table = table.presented()
    yield from _wrapped(table.title)
    yield from _wrapped(table.caption)
    groups: list[str] = []
    if table.is_grouped and (
        len({row[0] for row in table.rows}) < len(table.rows) or _excess(_widths(table, HALF))
    ):
        groups, table = [row[0] for row in table.rows], table.without(table.header[0])
    dropped, part = [], HALF
    while _excess(widths := _widths(table, part)) and (table.dispensable or part == HALF):
        if part == HALF and {*table.dispensable[:1]} <= {*table.answers}:
            part = columns()  # names are broken before a column is left out that answers
            continue
        name = table.dispensable[0]
        dropped += [] if f"{name}{INTERVAL}" in dropped else [name]
        table = table.narrowed(name)
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

    Then headings over numbers are wrapped between words, then words are. Names are broken where :func:`_pieces`
    allows it, those up to ``1 / part`` of the terminal and numbers never, so that widths may exceed the terminal.
    """
    every = list(zip(table.header, *table.rows, strict=True))
    widths = [max(map(len, column)) for column in every]
    longest = [max(len(word) for cell in column for word in unbroken(cell).split(" ")) for column in every]
    whole = [max(map(len, [*unbroken(head).split(" "), *cells])) for head, *cells in every]
    text = {
        place for place, (_, *cells) in enumerate(every) for cell in cells if " " in cell and cell[0].isalpha()
    }
    words = sorted({*range(table.left), *text})
    numbers = [place for place in range(len(every)) if place not in words]
    pieces = [max(len(piece) for cell in column for piece in _pieces(cell)) for column in every]
    least = [max(min(word, (columns() - GAP) // part), piece) for word, piece in zip(longest, pieces, strict=True)]
    for place in range(table.left, len(every)):  # numbers among words are never broken
        least[place] = max([least[place], *(len(cell) for cell in every[place][1:] if cell[:1].isdigit())])
    for among, floor in ((numbers, whole), (words, least)):
        while _excess(widths):
            wide = [place for place in among if widths[place] > floor[place]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


class _Pieces(textwrap.TextWrapper):
    """Breaks lines also within names: after a hyphen, underscore, comma, parenthesis, equals sign or slash."""

    wordsep_simple_re = re.compile(r"( +|(?<=[\w)][-_,(=/])(?=\w))")


def _pieces(text: str) -> list[str]:
    """Return the parts of a text that lines never break: parts of names, and numbers with their units."""
    return _Pieces.wordsep_simple_re.split(unbroken(text))


def _wrapped(text: str, width: int | None = None, indent: str = "") -> list[str]:
    """Break a text into lines, names only if they are too long; prose has at most 100 letters a line."""
    options: Any = {"break_on_hyphens": False, "break_long_words": False, "subsequent_indent": indent}
    width = width or min(columns(), 100)
    whole = textwrap.wrap(unbroken(text), width, **options)
    return [
        line.replace("\N{NO-BREAK SPACE}", " ")
        for long in whole
        for line in ([long] if len(long) <= width else _Pieces(width, **options).wrap(long))
    ]
