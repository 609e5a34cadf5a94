"""Contents of a report: all sections, a short form of them, or the outcome for a terminal."""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple, TypeVar

from hpcdl.analysis.run.pooling import AmbiguousCaseError
from hpcdl.exit_codes import UsageError
from hpcdl.report import sections
from hpcdl.report.formats.cells import plural
from hpcdl.report.formats.document import Chart, Document, Section
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.declaration import Answer, Declaration, badges
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.warnings import diverged, failed_processes, failures, unfinished, without_result
from hpcdl.suite import Suite, check_named
from hpcdl.trace.recorder import TraceError

T = TypeVar("T")
NOTHING: Final[Answer | None] = None
NO_CHARTS: Final[Sequence[Chart]] = ()
ROWS, FURTHER = 24, 12
"""Rows of a section in a short report, all tables together, if it answers the suite's question, or not."""
WHOLE, POINTS = 16, 8
"""Rows of a section, at most, of which a short report leaves none out, and points of a section."""
FURTHER_SENTENCES: Final = 3
"""Sentences below the headline, at most; the sections have the others."""
TERMINAL_ROWS, TERMINAL_POINTS = 8, 3
"""Rows of the table, and warnings, on a terminal."""

WARNINGS: Final = Declaration(
    5, lambda findings: Section("Warnings", points=findings.warnings, folded=True), name="verdict"
)


class Answers(NamedTuple):
    """Answers of the sections to the suite's question, in the order of the sections."""

    first: dict[Declaration, Answer]
    """Of the sections that the suite names, or of one."""
    others: dict[Declaration, Answer]
    further: Sequence[str]
    """Sentences after the headline: of other sections too if the suite names none."""

    @property
    def main(self) -> Answer:
        """The answer whose headline is that of the page; empty if no section answers."""
        return next(iter(self.first.values()), Answer(""))


def verdict_page(findings: Findings, known: Answers | None = None) -> Section:
    """Return the answer to the suite's question with its badges, failures, and some further sentences."""
    known = known or answers(findings)
    headline, basis = known.main.headline, [record for answer in known.first.values() for record in answer.basis]
    points = [f"FAILED {failure}" for failure in failures(findings.records)] + without_result(findings.run)
    points += [*known.further[:FURTHER_SENTENCES], *failed_processes(findings.run)]
    warned = f"{plural(len(findings.warnings), 'warning')}." if findings.warnings else "No warnings."
    records, broken = findings.records, len(unfinished(findings.run))
    failed, lost, states = len(failures(records)) + broken, len(diverged(records)), []
    if failed:
        states.append(f"FAILED: {plural(failed, 'case')} of {len(records) + broken}.")
    elif not (findings.run.complete and records):
        states.append(f"INCOMPLETE: {plural(len(records), 'case')} finished, others are missing.")
    if lost:
        states.append(f"DIVERGED: {plural(lost, 'case')} of {len(records)}.")
    paragraphs = [*filter(None, [headline]), " ".join([*(states or ["Nothing failed."]), warned])]
    return Section("Verdict", paragraphs, points, badges=badges(basis or findings.records) if headline else ())


VERDICT: Final = Declaration(0, verdict_page, name="verdict")


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
    return sorted([WARNINGS, VERDICT, *known], key=lambda section: section.order)


def check_answer(suite: Suite, source: object) -> None:
    """Raise UsageError if a suite names an unknown section for its answer, or compares what it does not have."""
    if "compare" in suite.table:
        from hpcdl.report.sections import contrast

        contrast.check(suite, source)
    if "answer" in suite.table:  # sections take half a second to import
        names = {section.name for section in declared() if section.answer}
        check_named(suite.table, "answer", sorted(names), source)


def _rank(section: Declaration, findings: Findings) -> int:
    """Return the place of a section among those that the suite names; their number if it is not named."""
    names = findings.answered_by
    return names.index(section.name) if section.name in names else len(names)


def _made(findings: Findings, name: str, make: Callable[[Findings], T], instead: T) -> T:
    """Return ``make(findings)``; after an error ``instead``, and keep the error for the page."""
    try:
        return make(findings)
    except (AmbiguousCaseError, TraceError, UsageError):
        raise  # the run itself can't be read
    except Exception as error:  # noqa: BLE001 - all other sections are shown
        findings.broken[name] = f"{type(error).__name__}: {error}"
        return instead


def answers(findings: Findings) -> Answers:
    """Return the answers of all sections, which are made once."""
    return findings.once(_answers)


def _answers(findings: Findings) -> Answers:
    ordered = sorted(declared(), key=lambda section: _rank(section, findings))
    made = [(one, _made(findings, f"answer {one.name}", one.answer, NOTHING)) for one in ordered if one.answer]
    known = [(section, answer) for section, answer in made if answer]
    named = max(1, sum(_rank(section, findings) < len(findings.answered_by) for section, _ in known))
    first, others = [answer for _, answer in known[:named]], [answer for _, answer in known[named:]]
    further = [*(answer.headline for answer in first[1:]), *(line for answer in first for line in answer.details)]
    further += [answer.headline for answer in others if not findings.answered_by]
    return Answers(dict(known[:named]), dict(known[named:]), further)


def document(findings: Findings, *, charts: bool = False) -> Document:
    """Return all sections with content, with or without charts; the main one is of the section that answers."""
    known = answers(findings)
    pages = _pages(findings, known)
    drawn = []
    if charts:
        figures = [
            [chart for made in one.figures for chart in _made(findings, f"figure {one.name}", made, NO_CHARTS)]
            for one, _ in pages
        ]
        pages = [(section, replace(page, charts=own)) for own, (section, page) in zip(figures, pages, strict=True)]
        drawn = sorted((_rank(section, findings), page.title) for section, page in pages if page.charts)
    return replace(_document(findings, known, [page for _, page in pages]), main=drawn[0][1] if drawn else "")


def short(findings: Findings) -> Document:
    """Return all sections, each with the first rows of its tables."""
    known = answers(findings)
    rows = {section: section.rows or (ROWS if section in known.first else FURTHER) for section in declared()}
    pages = _pages(findings, known, whole=False)
    return _document(findings, known, [page.shortened(rows[section], POINTS, WHOLE) for section, page in pages])


def summary(findings: Findings) -> Document:
    """Return the sections of a terminal: the answer, one table, of the section that answers, and the warnings."""
    known = answers(findings)
    (_, verdict), *others = _pages(findings, known, whole=False)
    answering = next((section for section, page in others if section.answer and page.tables), None)
    stated = findings.reference.network is not None or findings.reference.link
    shown = [page for section, page in others if section is answering or (stated and section.compares)]
    tables = [Section(page.title, tables=page.answering(TERMINAL_ROWS)) for page in shown]
    warned = [page.shortened(0, TERMINAL_POINTS) for section, page in others if section is WARNINGS]
    return _document(findings, known, [verdict.shortened(0, TERMINAL_POINTS), *tables, *warned])


def _pages(findings: Findings, known: Answers, *, whole: bool = True) -> list[tuple[Declaration, Section]]:
    """Return all sections, first those that answer or show it, with the sentences that the verdict lacks."""
    shown, named = known.further[:FURTHER_SENTENCES], {section.table for section in known.first}
    rest = sorted(declared(), key=lambda section: section.name not in named)
    pages = [(VERDICT, verdict_page(findings, known))]
    for section in dict.fromkeys([*known.first, *rest]):
        if section is not VERDICT:
            make = section.page if whole else section.short or section.page
            page = _made(findings, f"section {section.name}", make, Section(""))
            answer = {**known.first, **known.others}.get(section, Answer(""))
            begin = [answer.headline] if section in known.others and answer.headline not in shown else []
            details = [line for line in answer.details if line not in shown]
            page = replace(page, paragraphs=[*begin, *page.paragraphs], points=[*details, *page.points])
            pages.append((section, page))
    return pages


def _document(findings: Findings, known: Answers, pages: Sequence[Section]) -> Document:
    launches = len({fields.get("launch") for fields in findings.run.described})
    title = f"hpcdl: {findings.name}" + (f", {launches} launches" if launches > 1 else "")
    errors = [f"The {name} could not be made: {error}." for name, error in findings.broken.items()]
    shown = [pages[0], *([Section("Not shown", points=errors)] if errors else []), *filter(None, pages[1:])]
    failed = failures(findings.records) or unfinished(findings.run) or not findings.run.complete
    word, facts = "good" if known.main.good else "answered", {"headline": shown[0].paragraphs[0].rstrip(".")}
    verdict = Verdict(topic="run", word="failed" if failed else word, question=findings.question, facts=facts)
    return Document(title, shown, findings.question, [verdict])
