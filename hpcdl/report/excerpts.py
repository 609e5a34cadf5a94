"""One figure or one table of a report as a file, and the titles of all."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from hpcdl.report import contents
from hpcdl.report.formats import exports, markup
from hpcdl.report.render import missing
from hpcdl.report.run.findings import findings

if TYPE_CHECKING:
    from hpcdl.report.formats.document import Chart, Document
    from hpcdl.report.formats.tables import Table
    from hpcdl.trace.run import Run

FIGURES: Final = ("svg", "pdf", "png")
"""Endings of a file with one figure."""
TABLES: Final = ("md", "tex", "csv")
"""Endings of a file with one table."""
Titled = TypeVar("Titled")


def figures(pages: Iterable[Document]) -> list[tuple[str, Chart]]:
    """Return the figures of documents with their titles; those of the section that answers come first."""
    return [
        (chart.title, chart)
        for page in pages
        for section in sorted(page.sections, key=lambda section: section.title != page.main)
        for chart in section.charts
    ]


def tables(pages: Iterable[Document]) -> list[tuple[str, Table]]:
    """Return the tables of documents; their titles are those of the section and their own."""
    sections = [section for page in pages for section in page.sections]
    return [
        (": ".join(filter(None, (section.title, table.title))), table)
        for section in sections
        for table in section.tables
    ]


def titles(runs: Sequence[Run], *, charts: bool) -> str:
    """Return the titles of all figures, or of all tables, of a report, one in a line. Raises ValueError."""
    return "\n".join(
        dict.fromkeys(title for title, _ in (figures if charts else tables)(_pages(runs, charts=charts)))
    )


def figure_file(runs: Sequence[Run], title: str, form: str) -> bytes:
    """Return a figure in a form of :data:`FIGURES`. Raises ValueError if no title begins so."""
    pages = _pages(runs, charts=True)
    from hpcdl.report.formats.figure import standalone  # late: matplotlib may be missing

    return standalone(_chosen("figure", figures(pages), title), form)


def table_text(runs: Sequence[Run], title: str, form: str) -> str:
    r"""Return a table in a form of :data:`TABLES`; LaTeX ``\input`` takes that of tex. Raises ValueError."""
    table = _chosen("table", tables(_pages(runs)), title).visible()
    return {"csv": exports.table, "tex": markup.latex_table, "md": markup.markdown_table}[form](table)


def _pages(runs: Sequence[Run], *, charts: bool = False) -> list[Document]:
    if charts and missing():
        raise ValueError(missing())
    return [contents.document(run, charts=charts) for run in findings(runs)]


def _chosen(kind: str, titled: Sequence[tuple[str, Titled]], title: str) -> Titled:
    """Return the first object whose title, or a part of it after a colon, begins with ``title``."""
    begin = title.casefold()
    for name, value in titled:
        if any(name.casefold()[place:].startswith(begin) for place in (0, name.find(": ") + 2)):
            return value
    if not titled:
        raise ValueError(f"the report has no {kind}")
    near = max((name for name, _ in titled), key=lambda name: _likeness(begin, name.casefold()[: len(begin)]))
    raise ValueError(f"no {kind} {title!r}; did you mean {near!r}? --{kind} list has all")


def _likeness(title: str, beginning: str) -> float:
    return difflib.SequenceMatcher(None, title, beginning).ratio()
