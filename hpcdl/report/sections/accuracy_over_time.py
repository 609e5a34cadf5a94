"""Accuracy after each quarter of the common budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.analysis.run.ranking import BUDGETS, QUARTERS, progress
from hpcdl.report.figures.speedup import whole
from hpcdl.report.formats.cells import NONE, digits, plural, seconds
from hpcdl.report.formats.charts import Axis, Lines, Point, Series
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Declaration
from hpcdl.report.run.method_names import Names

if TYPE_CHECKING:
    from hpcdl.analysis.run.ranking import Candidate, Field
    from hpcdl.report.run.findings import Findings
    from hpcdl.report.run.settings import Settings


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


NOTE: Final = "Accuracy on the test set at each evaluation; medians over seeds and launches, bars are their range."


def charts(found: Findings) -> list[Lines]:
    """Return up to two charts per field: over time and over epochs."""
    return [
        chart for field in found.fields for column in BUDGETS.values() if (chart := _chart(field, column, found))
    ]


def _chart(field: Field, column: str, found: Findings) -> Lines | None:
    several = len({one.fields.get("ranks") for one in field.candidates}) > 1
    mixed = len({found.settings.name(one.fields) for one in field.candidates}) > 1
    names = names_in(field)
    series = []
    for one in field.candidates:
        points = _points(one, column) if one.is_evaluated else []
        words = (
            found.settings.name(one.fields) if mixed else "",
            names(one.fields),
            plural(one.fields.get("ranks"), "rank") if several else "",
        )
        series += [Series(", ".join(filter(None, words)), points)] if points else []
    if all(len(one.points) < 2 for one in series):
        return None
    series.sort(key=lambda one: -one.points[-1].y)
    timed = column == "training_seconds"
    what = f"{'virtual' if is_virtual(field) else 'training'} time" if timed else "epochs"
    where = ", ".join(filter(None, (field.dataset, conditions(field))))
    return Lines(
        f"Accuracy over {what}: {where}",
        Axis(what, seconds if timed else whole),
        Axis("accuracy", digits),
        series,
        NOTE,
    )


def _points(one: Candidate, column: str) -> list[Point]:
    """Return the medians of each evaluation that every launch has."""
    seen = [launch.evaluations for launch in one.launches]
    count = min(len(each["step"]) for each in seen)
    if not count:
        return []
    times = np.median([each[column][:count] for each in seen], axis=0)
    accuracies = np.array([each["accuracy"][:count] for each in seen])
    middle, low, high = np.median(accuracies, axis=0), accuracies.min(axis=0), accuracies.max(axis=0)
    rows = zip(times.tolist(), middle.tolist(), low.tolist(), high.tolist(), strict=True)
    return [Point(*row) if len(seen) > 1 else Point(*row[:2]) for row in rows]


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
        (settings.name(one.fields) or NONE, names(fields), str(fields.get("ranks")), *map(digits, reached))
        for one, reached in progress(field, question)
        for fields in [one.fields]
    ]
    where = ", ".join(filter(None, (field.dataset, conditions(field))))
    return Table(f"{where}: {budget_of(field, question)}", header, rows, 2).without_empty()


SECTION = Declaration(70, page, figures=(charts,))
