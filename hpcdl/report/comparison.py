"""Names, conditions and budgets of methods that are compared with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.analysis.ranking import BUDGETS
from hpcdl.report.formatting import digits, seconds
from hpcdl.report.method_names import Names

if TYPE_CHECKING:
    from hpcdl.analysis.ranking import Field


def names_in(field: Field) -> Names:
    """Return the names of the field's methods."""
    return Names(one.fields for one in field.candidates)


def conditions(field: Field) -> str:
    """Return the settings that not all fields share; empty if there are none."""
    return ", ".join(field.conditions)


def budget_of(field: Field, question: str) -> str:
    """Return the budget with its unit."""
    budget = field.budgets[question]
    if question not in BUDGETS or question == "accuracy_in_epochs":
        return f"{digits(budget)} epochs"
    return f"{seconds(budget)} of {'virtual' if is_virtual(field) else 'training'} time"


def is_virtual(field: Field) -> bool:
    """Return whether any method of the field was simulated."""
    return any(one.fields.get("network") for one in field.candidates)
