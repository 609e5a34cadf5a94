"""Accuracy over training time and over epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.analysis.ranking import BUDGETS
from hpcdl.report.charts import Axis, Lines, Point, Series
from hpcdl.report.comparison import conditions, is_virtual, names_in
from hpcdl.report.figures.speedup import whole
from hpcdl.report.formatting import digits, plural, seconds

if TYPE_CHECKING:
    from hpcdl.analysis.ranking import Candidate, Field
    from hpcdl.report.findings import Findings

NOTE: Final = "Accuracy on the test set at each evaluation; medians over seeds and launches, bars are their range."


def charts(found: Findings) -> list[Lines]:
    """Return up to two charts per field: over time and over epochs."""
    return [
        chart for field in found.fields for column in BUDGETS.values() if (chart := _chart(field, column, found))
    ]


def _chart(field: Field, column: str, found: Findings) -> Lines | None:
    several = len({one.fields.get("ranks") for one in field.candidates}) > 1
    mixed = len({found.settings.letter(one.fields) for one in field.candidates}) > 1
    names = names_in(field)
    series = []
    for one in field.candidates:
        points = _points(one, column) if one.is_evaluated else []
        words = (
            found.settings.letter(one.fields) if mixed else "",
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
