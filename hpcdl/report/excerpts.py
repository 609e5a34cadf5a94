"""One figure or one table of a report as a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final, TypeVar

from hpcdl.report import contents
from hpcdl.report.formats import exports, markup
from hpcdl.report.render import missing
from hpcdl.report.run.findings import findings

if TYPE_CHECKING:
    from hpcdl.report.formats.document import Chart
    from hpcdl.report.formats.tables import Table
    from hpcdl.trace.run import Run

FIGURES: Final = ("svg", "pdf", "png")
"""Endings of a file with one figure."""
TABLES: Final = {"md": markup.markdown_table, "tex": markup.latex_table, "csv": exports.table}
"""Writer of one table by the ending of its file; LaTeX can be input."""
Titled = TypeVar("Titled")


def figures(runs: Sequence[Run]) -> dict[str, Chart]:
    """Return the figures by title, those of the answer first. Raises ValueError without matplotlib."""
    if missing():
        raise ValueError(missing())
    pages = [contents.document(run, charts=True) for run in findings(runs)]
    return {
        chart.title: chart
        for page in pages
        for section in sorted(page.sections, key=lambda section: section.title != page.main)
        for chart in section.charts
    }


def tables(runs: Sequence[Run]) -> dict[str, Table]:
    """Return the tables with all rows by title: that of the section, then their own."""
    sections = [section for run in findings(runs) for section in contents.document(run).sections]
    return {
        ": ".join(filter(None, (section.title, table.title))): table.visible()
        for section in sections
        for table in section.tables
    }


def chosen(kind: str, titled: Mapping[str, Titled], title: str) -> Titled:
    """Return the first object whose title, or its part after a colon, begins with ``title``. Raises ValueError."""
    begin = title.casefold()
    for name, value in titled.items():
        if any(name.casefold()[place:].startswith(begin) for place in (0, name.find(": ") + 2)):
            return value
    if not titled:
        raise ValueError(f"the report has no {kind}")
    likeness = {name: SequenceMatcher(None, begin, name[: len(begin)].casefold()).ratio() for name in titled}
    near = max(likeness, key=lambda name: likeness[name])
    raise ValueError(f"no {kind} {title!r}; did you mean {near!r}? --{kind} list has all")
