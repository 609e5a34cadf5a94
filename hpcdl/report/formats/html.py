"""One self-contained HTML page: no script, no outside request, light and dark, for screens and paper."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hpcdl.report.formats.canvas import DARK, LIGHT
from hpcdl.report.formats.cells import visible
from hpcdl.report.formats.charts import Chart
from hpcdl.report.formats.document import Document, Section, Table
from hpcdl.report.run.contents import illustrated
from hpcdl.report.run.warnings import failures, unfinished

if TYPE_CHECKING:
    from jinja2 import Template

    from hpcdl.report.run.findings import Findings


MAX_FIGURES: Final = 8
"""Figures of a section, at most; the tables have all numbers."""


@dataclass(frozen=True)
class Illustration:
    """A figure of the page."""

    title: str
    svg: Markup
    note: str
    numbers: Table


@dataclass(frozen=True)
class Part:
    """A section of the page."""

    anchor: str
    section: Section
    figures: Sequence[Illustration]
    left_out: int


@dataclass(frozen=True)
class Page:
    """A run on the page."""

    head: Document
    parts: Sequence[Part]
    figure: Illustration | None
    """Main figure, at the side of the answer."""
    failed: bool
    good: bool


class Source(NamedTuple):
    """Content of a page; the first paragraph of its first section is the headline."""

    head: Document
    contents: Sequence[tuple[Section, Sequence[Chart]]]
    failed: bool
    good: bool = True
    """True if the answer is a good one."""
    main: str = ""
    """Title of the section with the main figure; else it is the first figure."""


def render(findings: Sequence[Findings]) -> str:
    """Return the page; several runs follow each other."""
    return written([_of_run(run) for run in findings])


def svg(findings: Sequence[Findings], title: str = "") -> str:
    """Return the first figure whose title begins with ``title`` as SVG. Raises ValueError if there is none."""
    from hpcdl.report.formats.figure import figure, standalone

    charts = [chart for run in findings for _, charts in illustrated(run)[1] for chart in charts]
    chosen = next((chart for chart in charts if chart.title.casefold().startswith(title.casefold())), None)
    if chosen is None:
        titles = [chart.title for chart in charts]
        near = difflib.get_close_matches(title, titles, 1, 0)
        raise ValueError(f"no figure {title!r}; did you mean {near[0]!r}?" if near else "the report has no figure")
    return standalone(figure(chosen, 1), chosen.title, chosen.note)


def written(sources: Sequence[Source]) -> str:
    """Return one page with all sources."""
    numbers = count(1)
    return _template().render(pages=[_page(source, numbers) for source in sources], light=LIGHT, dark=DARK)


def headed(verdict: Section) -> Section:
    """Return a section whose first point is the headline of the page."""
    headline, *points = verdict.points
    return Section(verdict.title, [headline, *verdict.paragraphs], points)


def _of_run(findings: Findings) -> Source:
    head, contents, main = illustrated(findings)
    failed = bool(failures(findings.records) or unfinished(findings.run) or not findings.run.complete)
    good = any(record.get("near_linear") for record in findings.records)
    return Source(head, contents, failed, good, main)


@cache
def _template() -> Template:
    loader = PackageLoader("hpcdl.report", "page")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["visible_lines"] = _visible_lines
    return environment.get_template("page.html")


def _page(source: Source, numbers: Iterator[int]) -> Page:
    parts = []
    for section, charts in source.contents:
        figures = [_illustration(chart, next(numbers)) for chart in charts[:MAX_FIGURES]]
        parts.append(Part(f"p{next(numbers)}", section.visible(), figures, max(0, len(charts) - MAX_FIGURES)))
    drawn = sorted((part for part in parts if part.figures), key=lambda part: part.section.title != source.main)
    shown = drawn[0] if drawn else None
    figure = shown.figures[0] if shown else None
    parts = [replace(part, figures=part.figures[1:]) if part is shown else part for part in parts]
    return Page(source.head.visible(), parts, figure, source.failed, source.good)


def _illustration(chart: Chart, number: int) -> Illustration:
    from hpcdl.report.formats.figure import figure  # late: a page without figures needs no matplotlib

    svg = Markup(figure(chart, number))  # noqa: S704 - matplotlib escapes its texts
    return Illustration(visible(chart.title), svg, visible(chart.note), chart.table().visible())


def _visible_lines(text: str) -> str:
    """Return a text of several lines without control characters other than their ends."""
    return "\n".join(visible(line.replace("\t", "    ")) for line in text.rstrip("\n").split("\n"))
