"""Accuracy after each quarter of the common budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.analysis.ranking import QUARTERS, progress
from hpcdl.report.comparison import budget_of, conditions, names_in
from hpcdl.report.declaration import Declaration
from hpcdl.report.document import Section, Table
from hpcdl.report.figures import accuracy
from hpcdl.report.formatting import NONE, digits, seconds

if TYPE_CHECKING:
    from hpcdl.analysis.ranking import Field
    from hpcdl.report.findings import Findings
    from hpcdl.report.settings import Settings


def page(found: Findings) -> Section:
    """Return one table per field and budget."""
    tables = [
        _over_budget(field, question, found.settings)
        for field in found.fields
        for question in field.budgets
        if sum(one.is_evaluated for one in field.candidates) > 1
    ]
    note = "Best accuracy yet, the mean over seeds; a dash where the test set had not been looked at by then."
    return Section("Accuracy over time", [note] if tables else [], tables=tables)


def _over_budget(field: Field, question: str, settings: Settings) -> Table:
    names = names_in(field)
    budget = field.budgets[question]
    shown = seconds if question == "accuracy_in_time" else digits
    header = ("setting", "method", "ranks", *(f"{part:.0%} = {shown(part * budget)}" for part in QUARTERS))
    rows = [
        (settings.letter(one.fields) or NONE, names(fields), str(fields.get("ranks")), *map(digits, reached))
        for one, reached in progress(field, question)
        for fields in [one.fields]
    ]
    where = ", ".join(filter(None, (field.dataset, conditions(field))))
    return Table(f"{where}: {budget_of(field, question)}", header, rows, 2).without_empty()


SECTION = Declaration(70, page, figures=(accuracy.charts,))
