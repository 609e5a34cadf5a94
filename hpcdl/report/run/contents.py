"""Contents of a report: all sections, a short form of them, or the outcome for a terminal."""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, NamedTuple

from hpcdl.analysis.run.record import Record
from hpcdl.report import sections
from hpcdl.report.formats.cells import plural
from hpcdl.report.formats.document import Chart, Column, Document, Part, R_contra, Section, table
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method
from hpcdl.report.run.warnings import failures, unfinished
from hpcdl.suite import Suite, check_named, head

ROWS: Final = 24
"""Rows of a section in a short report, all tables together."""
FURTHER: Final = 12
"""Rows of a section that does not answer the suite's question, if another one does."""
EVIDENCE: Final = 8
"""Rows of a section that explains others."""
WHOLE: Final = 16
"""Rows of a section, at most, of which a short report leaves none out."""
POINTS: Final = 8
"""Points of a section in a short report."""
TERMINAL_ROWS: Final = 10
TERMINAL_POINTS: Final = 3
"""Rows and points of a section on a terminal."""
DOUBTS: Final = {"emulated": "emulated links", "oversubscribed": "OVERSUBSCRIBED", "disturbed": "DISTURBED"}
"""Words for the marks of measured records."""


class Answer(NamedTuple):
    """Answer to the suite's question, as far as one section gives it."""

    headline: str
    """One sentence."""
    details: Sequence[str] = ()


@dataclass(frozen=True)
class Declaration:
    """A section: a constant of a file in ``hpcdl/report/sections``, such as ``SECTION``.

    A section that does not apply to a run returns a ``Section`` without content, and None instead of an answer.
    """

    order: int
    """Place on the page, ascending; answers have the same order."""
    page: Callable[[Findings], Section]
    """All content; the rows of its tables begin with those that matter most."""
    short: Callable[[Findings], Section] | None = None
    """Content of a short report; None: the first rows of all content."""
    rows: int | None = None
    """Rows in a short report; None: :data:`ROWS`, or :data:`FURTHER`."""
    terminal: Sequence[Part] = ()
    """Parts of a short report that a terminal shows; empty: none."""
    answer: Callable[[Findings], Answer | None] | None = None
    """Contribution to the verdict, or beginning of the section if another one answers the suite's question."""
    figures: Sequence[Callable[[Findings], Sequence[Chart]]] = ()
    """Charts of a page with figures, before the tables."""
    name: str = ""
    """Name by which a suite asks for its answer; empty: that of its file."""


def certainty(records: Sequence[Record]) -> str:
    """Return what numbers of ``records`` rest on, in words: the fewest launches and seeds, and each doubt."""
    measured = [record for record in records if not record.network]
    simulated = len(records) - len(measured)
    words = [f"{simulated} of {len(records)} cases simulated" if measured else "simulated"] if simulated else []
    if measured:
        kept = min(record.launches for record in measured)
        launches = min(record.launches + record.launches_left_out for record in measured)
        words.append("1 launch" if launches == 1 else f"{launches} launches")
        words += [f"of one case only {kept} undisturbed"] if kept < launches else []
        marks = {mark for record in measured for mark in record.marks}
        words += [word for mark, word in DOUBTS.items() if mark in marks]
    if learned := [record for record in records if record.final_accuracy is not None]:
        words.append(plural(len({record.seed for record in learned}), "seed"))
    return ", ".join(words)


def per_setting(
    findings: Findings,
    title: str,
    columns: Sequence[Column[R_contra]],
    rows: Callable[[Sequence[Method]], Sequence[R_contra]],
    note: str = "",
    order: str = "",
) -> Section:
    """Return a section with one table per problem; ``rows``: those of a problem's methods, perhaps none."""
    tables = [
        table(columns, made, findings.settings.title(methods[0].record), order=order)
        for methods in findings.problems
        if (made := rows(methods))
    ]
    return Section(title, [note] if tables and note else [], tables=tables, per="setting")


@cache
def declared() -> list[Declaration]:
    """Return the sections of the files in ``hpcdl/report/sections``, in their order."""
    names = [module.name for module in pkgutil.iter_modules(sections.__path__)]
    modules = {name: importlib.import_module(f"{sections.__name__}.{name}") for name in names}
    known = [
        replace(value, name=value.name or name)
        for name, module in modules.items()
        for value in vars(module).values()
        if isinstance(value, Declaration)
    ]
    return sorted(known, key=lambda section: section.order)


def check_answer(suite: Suite, source: object) -> None:
    """Raise UsageError if a suite names a section for its answer that is not there."""
    table = head(suite.text)
    if "answer" in table:  # sections take half a second to import
        check_named(table, "answer", sorted({section.name for section in declared()}), source)


def _rank(section: Declaration, findings: Findings) -> int:
    """Return the place of a section's file among those that the suite names; their number if it is not named."""
    names = findings.answered_by
    return names.index(section.name) if section.name in names else len(names)


def answers(findings: Findings) -> tuple[dict[Declaration, Answer], dict[Declaration, Answer]]:
    """Return the answers that begin the report and those of other sections, each in their order.

    The first are those of the sections that the suite names, or of one section if none of these has an answer.
    """
    ordered = sorted(declared(), key=lambda section: _rank(section, findings))
    known = [(section, answer) for section in ordered if section.answer and (answer := section.answer(findings))]
    first = max(1, sum(_rank(section, findings) < len(findings.answered_by) for section, _ in known))
    return dict(known[:first]), dict(known[first:])


def document(findings: Findings, *, charts: bool = False) -> Document:
    """Return all sections to which the run has something to show, with or without their charts.

    The main chart is of the section that answers the suite's question.
    """
    pages = _pages(findings)
    drawn = []
    if charts:
        figures = [[chart for made in section.figures for chart in made(findings)] for section, *_ in pages]
        pages = [
            (section, replace(page, charts=own), x) for own, (section, page, x) in zip(figures, pages, strict=True)
        ]
        drawn = sorted((_rank(section, findings), page.title) for section, page, _ in pages if page.charts)
    return replace(_document(findings, [page for _, page, _ in pages]), main=drawn[0][1] if drawn else "")


def short(findings: Findings) -> Document:
    """Return all sections, each with the first rows of its tables."""
    pages = _pages(findings, whole=False)
    return _document(
        findings, [page.shortened(_rows(section, findings), POINTS, WHOLE) for section, page, _ in pages]
    )


def summary(findings: Findings) -> Document:
    """Return the sections of a terminal: the answer, and tables with their main columns and first rows."""
    pages = []
    for section, page, headline in _pages(findings, whole=False):
        if section.terminal and page:
            rows = _rows(section, findings) if section.short else TERMINAL_ROWS
            shown = page.shortened(rows, TERMINAL_POINTS).reduced(section.terminal)
            pages.append(replace(shown, paragraphs=list(dict.fromkeys([*headline, *shown.paragraphs]))))
    return _document(findings, pages)


def _rows(section: Declaration, findings: Findings) -> int:
    named = _rank(section, findings) < len(findings.answered_by) or not findings.answered_by
    return section.rows or (ROWS if named else FURTHER)


def _pages(findings: Findings, *, whole: bool = True) -> list[tuple[Declaration, Section, list[str]]]:
    """Return each section with its answer, with which it begins; the verdict has the first answers.

    If the suite names no answer, the verdict has the headlines of all.
    """
    _, others = answers(findings)
    pages = []
    for section in declared():
        page = (section.page if whole else section.short or section.page)(findings)
        headline, details = others.get(section) or (None, ())
        begin = [headline] if headline and findings.answered_by else []
        page = replace(page, paragraphs=[*begin, *page.paragraphs], points=[*details, *page.points])
        pages.append((section, page, begin))
    return pages


def _document(findings: Findings, pages: Sequence[Section]) -> Document:
    launches = len({fields.get("launch") for fields in findings.run.described})
    title = f"hpcdl: {findings.name}" + (f", {launches} launches" if launches > 1 else "")
    shown = list(filter(None, pages))
    return Document(title, shown, findings.question, [_verdict(findings, shown[0].paragraphs[0])])


def _verdict(findings: Findings, headline: str) -> Verdict:
    failed = bool(failures(findings.records) or unfinished(findings.run) or not findings.run.complete)
    good = any(record.near_linear for record in findings.records)
    word = "failed" if failed else "near-linear" if good else "answered"
    return Verdict(topic="run", word=word, question=findings.question, facts={"headline": headline.rstrip(".")})
