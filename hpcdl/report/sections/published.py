"""Figures of papers beside ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.report.prediction import published_results
from hpcdl.report.run.contents import Answer, Declaration

if TYPE_CHECKING:
    from hpcdl.report.formats.document import Section
    from hpcdl.report.run.findings import Findings


def page(found: Findings) -> Section:
    """Return one table per paper that the suite names."""
    return published_results.section(found.papers, found.records)


def terminal(found: Findings) -> Section:
    """Return the largest scale of each result, without its place in the paper."""
    brief = published_results.section(found.papers, found.records, brief=True)
    return brief.brief("place in the paper")


def answer(found: Findings) -> Answer | None:
    """Return the number of figures that are reproduced."""
    line = published_results.headline(found.papers, found.records)
    return Answer(line) if line else None


SECTION = Declaration(20, page, terminal, answer)
