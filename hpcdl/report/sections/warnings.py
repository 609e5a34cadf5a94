"""Warnings: doubts about the numbers, worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.report.declaration import Declaration
from hpcdl.report.document import Section

if TYPE_CHECKING:
    from hpcdl.report.findings import Findings


def page(found: Findings) -> Section:
    """Return one point per warning."""
    return Section("Warnings", points=found.warnings)


SECTION = Declaration(5, page, page)
