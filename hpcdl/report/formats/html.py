"""One self-contained HTML page: no script, no outside request, light and dark, for screens and paper."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from hpcdl.exit_codes import FAILED, visible
from hpcdl.report.formats.canvas import theme_css
from hpcdl.report.formats.cells import unbroken, visible_lines
from hpcdl.report.formats.document import Chart, Document, Section, caption
from hpcdl.report.formats.tables import Table
from hpcdl.report.formats.verdicts import exit_code

if TYPE_CHECKING:
    from jinja2 import Template

MAX_FIGURES: Final = 8
"""Figures of a section, at most; the tables have all numbers."""


_TEXTS: Final = re.compile(r"<(pre|style|svg|title)\b.*?</\1>|>[^<]+", re.DOTALL)
"""Elements that stay as they are, and other texts between tags."""


class Illustration(NamedTuple):
    """A figure of the page."""

    title: str
    svg: Markup
    note: str
    numbers: Table


class Part(NamedTuple):
    """A section of the page."""

    anchor: str
    section: Section
    figures: Sequence[Illustration]
    left_out: int


class Page(NamedTuple):
    """A document on the page."""

    head: Document
    verdict: Section
    """Its paragraphs are the headline and what stands below it; its points follow them."""
    parts: Sequence[Part]
    figure: Illustration | None
    """Main figure, at the side of the answer."""
    state: str
    """``failed``, ``good`` or empty."""


def written(pages: Iterable[Document], broken: MutableMapping[str, str] | None = None) -> str:
    """Return one page with all documents; ``broken``: takes the error of each figure that can't be drawn."""
    broken = {} if broken is None else broken
    numbers = count(1)
    theme = Markup(theme_css())  # noqa: S704 - of constants
    text = _template().render(pages=[_page(page, numbers, broken) for page in pages], theme=theme)
    return _TEXTS.sub(lambda part: part[0] if part[1] else _text(part[0]), text)


def _text(text: str) -> str:
    """Return a text of the page in which numbers and units stay together, and backticks enclose code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", unbroken(text)).replace("\N{NO-BREAK SPACE}", "&nbsp;")


def _with_link(text: str, parts: Sequence[Part]) -> Markup:
    """Return a text whose number of warnings is a link to the section that has them, if there is one."""
    link = "".join(rf'<a href="#{part.anchor}">\g<0></a>' for part in parts if part.section.title == "Warnings")
    return Markup(re.sub(r"\b\d+ warnings?\b", link or r"\g<0>", str(escape(text))))  # noqa: S704 - it is escaped


@cache
def _template() -> Template:
    loader = PackageLoader("hpcdl.report", "page")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(visible_lines=visible_lines, breakable=_breakable, with_link=_with_link)
    return environment.get_template("page.html")


def _breakable(text: str) -> Markup:
    """Return text that a narrow column may break after commas, underscores and opening parentheses of names."""
    return Markup(re.sub(r"(?<=\S[(,_])(?=\S)", "<wbr>", str(escape(text))))  # noqa: S704 - it is escaped


def _page(page: Document, numbers: Iterator[int], broken: MutableMapping[str, str]) -> Page:
    """Return the page; the verdict and the main figure stand in its head, and in no section below."""
    verdict, *others = page.visible().sections
    main = next(
        (section.title for section in page.sections if section.charts and page.main in {section.title, ""}), None
    )
    figure = None
    parts = []
    for whole in others:
        # values that all rows of a table share stand above it, and details come last
        section = replace(whole, tables=[table.presented().with_details_last() for table in whole.tables])
        charts, errors = list[Illustration](), dict[str, str]()
        for chart in section.charts[:MAX_FIGURES]:
            try:
                charts.append(_illustration(chart, next(numbers)))
            except Exception as error:  # noqa: BLE001 - all other figures are shown
                errors[f"figure {chart.title}"] = f"{type(error).__name__}: {error}"
        broken.update(errors)
        lines = [f"The {name} could not be drawn: {error}." for name, error in errors.items()]
        section = replace(section, points=[*section.points, *lines])
        if charts and section.title == main and figure is None:
            figure, *charts = charts
        left_out = max(0, len(section.charts) - MAX_FIGURES)
        if charts or left_out or replace(section, charts=()):
            parts.append(Part(f"p{next(numbers)}", section, charts, left_out))
    failed, good = exit_code(page.verdicts) == FAILED, bool(page.verdicts and page.verdicts[0].row.good)
    return Page(page.visible(), verdict, parts, figure, "failed" if failed else "good" if good else "")


def _illustration(chart: Chart, number: int) -> Illustration:
    from hpcdl.report.formats.figure import figure  # late: a page without figures needs no matplotlib

    svg = Markup(figure(chart, number))  # noqa: S704 - matplotlib escapes its texts
    header, *rows = chart.numbers()
    numbers = Table("", header, rows).without_empty().visible()
    return Illustration(visible(chart.title), svg, visible(caption(chart)), numbers)
