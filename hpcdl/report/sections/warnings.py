"""Warnings: doubts about the numbers, worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.report.formats.document import Section
from hpcdl.report.run.contents import Declaration

if TYPE_CHECKING:
    from hpcdl.report.run.findings import Findings


def page(found: Findings) -> Section:
    """Return one point per warning."""
    return Section("Warnings", points=found.warnings, folded=True)


SECTION = Declaration(5, page, page)
