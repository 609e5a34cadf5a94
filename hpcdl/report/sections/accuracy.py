"""Accuracy at the end, and its course over time and epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.analysis.run.ranking import BUDGETS
from hpcdl.report.formats.cells import NONE, digits, plural, seconds, spread, whole
from hpcdl.report.formats.charts import Axis, Lines, Point, Series
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Answer, Declaration, without
from hpcdl.report.run.grouping import rows
from hpcdl.report.run.method_names import Names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcdl.analysis.run.ranking import Candidate, Field
    from hpcdl.report.formats.cells import Number
    from hpcdl.report.run.findings import Findings
    from hpcdl.report.run.grouping import Method, Row, Scale


TITLE: Final = "Accuracy"
HEADER: Final = (
    *("method", "ranks", "final accuracy", "best accuracy", "final loss", "target reached"),
    *("time to target", "ranks x time", "samples", "epochs", "noise scale", "drift"),
)
DRIFT: Final = "Drift: distance of replicas from their average before it, by the norm of the average."
NOISE: Final = (
    "Noise scale: batch beyond which larger ones hardly save steps (McCandlish et al. 2018), in the last quarter "
    "of the training."
)


def _learned(methods: Sequence[Method]) -> list[Row]:
    """Return rows with an accuracy; ranks that do not communicate learn each for itself and are left out."""
    return [
        member
        for row in rows(methods)
        if row.scale.values("final_accuracy") and not row.is_ceiling
        for member in ([row] if _learned_alike(row.scale) else row.members)
    ]


def accuracy_page(findings: Findings) -> Section:
    """Return one table per problem."""
    tables = []
    for methods in findings.problems:
        learned = sorted(_learned(methods), key=_order)
        first = methods[0].scales[0].records[0]
        target = first["target_accuracy"]
        if not learned:
            continue
        notes = ["No target accuracy was set." if target is None else f"Target accuracy {digits(target)}."]
        if any(len(row.scale.records) > 1 for row in learned):
            notes.append("Medians, with their range where they differ, over seeds and over pooled methods.")
        if any(row.scale.values("noise_scale_q4") for row in learned):
            notes.append(NOISE)
        if any(row.scale.values("replica_drift") for row in learned):
            notes.append(DRIFT)
        cells = [_accuracy(row) for row in learned]
        table = Table(findings.settings.title(first), HEADER, cells, 1, notes, "highest final accuracy first")
        missed = target is not None and any(
            len(row.scale.values("seconds_to_target")) < len(row.scale.records) for row in learned
        )
        tables.append((table if missed else table.without("best accuracy")).without_empty())
    return Section(TITLE, tables=tables, per="setting")


def _order(row: Row) -> tuple[float, float]:
    """Return the key by which the highest final accuracy comes first, then the shortest time to the target."""
    time = row.scale.median("seconds_to_target")
    return -(row.scale.median("final_accuracy") or 0.0), np.inf if time is None else time


def _learned_alike(scale: Scale) -> bool:
    """Return whether all records of a seed have the same accuracy and loss, to the shown digits."""
    learned: dict[Any, set[tuple[str, str]]] = {}
    for record in scale.records:
        shown = (digits(record["final_accuracy"]), digits(record["final_loss"]))
        learned.setdefault(record["seed"], set()).add(shown)
    return all(len(different) == 1 for different in learned.values())


def _accuracy(row: Row) -> tuple[str, ...]:
    scale = row.scale
    reached, tried = len(scale.values("seconds_to_target")), len(scale.records)
    answer = f"{reached} of {tried}" if tried > 1 else "yes" if reached else "no"
    return (
        row.name,
        str(scale["ranks"]),
        _ranged(scale, "final_accuracy", digits),
        _ranged(scale, "best_accuracy", digits),
        _ranged(scale, "final_loss", digits),
        NONE if scale["target_accuracy"] is None else answer,
        _ranged(scale, "seconds_to_target", seconds),
        _ranged(scale, "seconds_to_target", lambda value: seconds(value and value * scale["ranks"])),
        _ranged(scale, "samples_to_target", lambda value: NONE if value is None else f"{value:.0f}"),
        _ranged(scale, "epochs_to_target", digits),
        digits(scale.median("noise_scale_q4")),
        digits(scale.median("replica_drift")),
    )


def _ranged(scale: Scale, name: str, shown: Callable[[Number], str]) -> str:
    """Return the median with its range; neither if some seeds have no value."""
    low, high = scale.low(name), scale.high(name)
    if low is None or high is None:
        return NONE
    return shown(low) if low == high else spread(scale.median(name), low, high, shown)


def accuracy_answer(findings: Findings) -> Answer | None:
    """Return the range of final accuracies, and the number of cases that reached their target."""
    lines = []
    for methods in findings.problems:
        learned = _learned(methods)
        if learned:
            letter = findings.settings.name(methods[0].scales[0].records[0])
            line = _accuracy_range(learned) + _reached(learned)
            lines.append(f"{letter}: {line}." if letter else f"{line}.")
    return Answer(lines[0], lines[1:]) if lines else None


def _accuracy_range(learned: Sequence[Row]) -> str:
    ordered = sorted((row.scale.median("final_accuracy") or 0.0, row.name) for row in learned)
    low, high = digits(ordered[0][0]), digits(ordered[-1][0])
    if low == high:
        return f"Final accuracy {low}" + (f" with every method{_losses(learned)}" if len(learned) > 1 else "")
    return f"Final accuracy from {low} ({ordered[0][1]}) to {high} ({ordered[-1][1]})"


def _losses(learned: Sequence[Row]) -> str:
    """Return the largest difference of final losses; empty if one is unknown."""
    losses = [loss for row in learned for loss in row.scale.values("final_loss")]
    return f", final losses within {digits(max(losses) - min(losses))} of each other" if losses else ""


def _reached(learned: Sequence[Row]) -> str:
    records = [record for row in learned for record in row.scale.records]
    targets = {target for record in records if (target := record.get("target_accuracy")) is not None}
    if not targets:
        return ""
    reached = sum(record.get("seconds_to_target") is not None for record in records)
    target = f" of {digits(min(targets))}" if len(targets) == 1 else ""
    return f"; {reached} of {plural(len(records), 'case')} reached the target{target}"


def names_in(field: Field) -> Names:
    """Return the names of the field's methods."""
    return Names(candidate.fields for candidate in field.candidates)


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
    return any(candidate.fields.get("network") for candidate in field.candidates)


NOTE: Final = "Accuracy on the test set at each evaluation; medians over seeds and launches, bars are their range."


def charts(findings: Findings) -> list[Lines]:
    """Return up to two charts per field: over time and over epochs."""
    return [
        chart
        for field in findings.fields
        for column in BUDGETS.values()
        if (chart := _chart(field, column, findings))
    ]


def _chart(field: Field, column: str, findings: Findings) -> Lines | None:
    several = len({candidate.fields.get("ranks") for candidate in field.candidates}) > 1
    mixed = len({findings.settings.name(candidate.fields) for candidate in field.candidates}) > 1
    names = names_in(field)
    series = []
    for candidate in field.candidates:
        points = _points(candidate, column) if candidate.is_evaluated else []
        words = (
            findings.settings.name(candidate.fields) if mixed else "",
            names(candidate.fields),
            plural(candidate.fields.get("ranks"), "rank") if several else "",
        )
        series += [Series(", ".join(filter(None, words)), points)] if points else []
    if all(len(candidate.points) < 2 for candidate in series):
        return None
    series.sort(key=lambda candidate: -candidate.points[-1].y)
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


def _points(candidate: Candidate, column: str) -> list[Point]:
    """Return the medians of each evaluation that every launch has."""
    seen = [launch.evaluations for launch in candidate.launches]
    count = min(len(each["step"]) for each in seen)
    if not count:
        return []
    times = np.median([each[column][:count] for each in seen], axis=0)
    accuracies = np.array([each["accuracy"][:count] for each in seen])
    middle, low, high = np.median(accuracies, axis=0), accuracies.min(axis=0), accuracies.max(axis=0)
    rows = zip(times.tolist(), middle.tolist(), low.tolist(), high.tolist(), strict=True)
    return [Point(*row) if len(seen) > 1 else Point(*row[:2]) for row in rows]


ACCURACY: Final = Declaration(
    60,
    accuracy_page,
    terminal=without("final loss", "ranks x time", "samples", "epochs", "noise scale", "drift"),
    answer=accuracy_answer,
    figures=(charts,),
)
