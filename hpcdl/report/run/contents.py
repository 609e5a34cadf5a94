"""Contents of a report: all sections for a file, or the outcome for a terminal."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from hpcdl.report import sections
from hpcdl.report.formats.document import Document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcdl.report.formats.charts import Chart
    from hpcdl.report.formats.document import Section
    from hpcdl.report.run.findings import Findings


BEST: Final = 5
"""Methods that a table shows on a terminal."""


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
    """Content in a file."""
    terminal: Callable[[Findings], Section] | None = None
    """Content on a terminal; None: not shown there."""
    answer: Callable[[Findings], Answer | None] | None = None
    """Contribution to the verdict."""
    figures: Sequence[Callable[[Findings], Sequence[Chart]]] = ()
    """Charts of a page with figures, before the tables; each comes from a file in ``hpcdl/report/figures``."""


@cache
def declared() -> list[Declaration]:
    """Return the sections of the files in ``hpcdl/report/sections``, in their order."""
    names = [module.name for module in pkgutil.iter_modules(sections.__path__)]
    modules = [importlib.import_module(f"{sections.__name__}.{name}") for name in names]
    known = [value for module in modules for value in vars(module).values() if isinstance(value, Declaration)]
    return sorted(known, key=lambda section: section.order)


def answers(findings: Findings) -> list[Answer]:
    """Return what the sections answer; first the one that the suite names, then in the order of the sections."""
    first = f"{sections.__name__}.{findings.answered_by}"
    ordered = sorted(declared(), key=lambda section: section.page.__module__ != first)
    return [answer for section in ordered if section.answer and (answer := section.answer(findings))]


def document(findings: Findings) -> Document:
    """Return all sections to which the run has something to show."""
    pages = [section.page(findings) for section in declared()]
    return Document(_title(findings), list(filter(None, pages)), findings.question)


def illustrated(findings: Findings) -> tuple[Document, list[tuple[Section, list[Chart]]]]:
    """Return all sections as :func:`document`, and each with its charts; those without either are left out."""
    pages = [
        (section.page(findings), [chart for charts in section.figures for chart in charts(findings)])
        for section in declared()
    ]
    kept = [(section, charts) for section, charts in pages if section or charts]
    return Document(_title(findings), [section for section, _ in kept], findings.question), kept


def summary(findings: Findings) -> Document:
    """Return the sections of a terminal: the answers, and each table with its main columns and best rows."""
    pages = [section.terminal(findings) for section in declared() if section.terminal]
    return Document(_title(findings), list(filter(None, pages)), findings.question)


def _title(findings: Findings) -> str:
    """Return the run's name, and the number of launches if they are pooled."""
    launches = len({fields.get("launch") for fields in findings.run.described})
    return f"hpcdl: {findings.name}" + (f", {launches} launches" if launches > 1 else "")
