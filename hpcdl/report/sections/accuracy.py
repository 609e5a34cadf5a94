"""Accuracy at the end, and its course over time and epochs."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from hpcdl.analysis.run.deciding import Candidate, Field
from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.differences import ALPHA, adjusted, difference
from hpcdl.report.formats.cells import NONE, Number, digits, interval, plural, seconds, whole
from hpcdl.report.formats.document import Axis, Lines, Point, Section, Series, Table
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.contents import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, Scale, rows
from hpcdl.report.run.method_names import Names
from hpcdl.report.run.warnings import diverged
from hpcdl.report.sections.compression import points_of
from hpcdl.trace.quantity import Quantity

HEADER: Final = (
    *("method", "ranks", "final accuracy", "best accuracy", "final loss", "target reached"),
    *("time to target", "samples", "epochs"),
)


def _learned(methods: Sequence[Method]) -> list[Row]:
    """Return rows with an accuracy, or that diverged; ranks that do not communicate are left out."""
    return [
        member
        for row in rows(methods)
        if (row.scale.values(Record.final_accuracy) or diverged(row.scale.records)) and not row.is_ceiling
        for member in ([row] if _learned_alike(row.scale) else row.members)
    ]


def _learned_alike(scale: Scale) -> bool:
    """Return True if all records of a seed have the same accuracy and loss, to the shown digits."""
    learned: dict[object, set[tuple[str, str]]] = {}
    for record in scale.records:
        shown = (digits(record.final_accuracy), digits(record.final_loss))
        learned.setdefault(record.seed, set()).add(shown)
    return all(len(different) == 1 for different in learned.values())


def page(findings: Findings) -> Section:
    """Return one table per problem."""
    tables = []
    for methods in findings.problems:
        learned = sorted(_learned(methods), key=_order)
        if not learned:
            continue
        target = methods[0].record.target_accuracy
        notes = ["No target accuracy was set." if target is None else f"Target accuracy {digits(target)}."]
        if any(len(row.scale.records) > 1 for row in learned):
            notes.append("Medians, with their range where they differ, over seeds and over pooled methods.")
        title, cells = findings.settings.title(methods[0].record), [_accuracy(row) for row in learned]
        table = Table(
            title,
            HEADER,
            cells,
            1,
            notes,
            "highest final accuracy first",
            hidden=("final loss", "samples", "epochs"),
        )
        missed = target is not None and any(_reached(row.scale) < len(row.scale.records) for row in learned)
        tables.append((table if missed else table.without("best accuracy")).without_empty())
    return Section("Accuracy", tables=tables, per="setting")


def _order(row: Row) -> tuple[float, float]:
    time = row.scale.median(Record.seconds_to_target)
    return -(row.scale.median(Record.final_accuracy) or 0.0), np.inf if time is None else time


def _reached(scale: Scale) -> int:
    return len(scale.values(Record.seconds_to_target))


def _accuracy(row: Row) -> tuple[str, ...]:
    scale = row.scale
    reached, tried = _reached(scale), len(scale.records)
    answer = f"{reached} of {tried}" if tried > 1 else "yes" if reached else "no"
    return (
        row.name,
        str(scale.record.ranks),
        _diverged(scale) or _ranged(scale, Record.final_accuracy, digits),
        *(_ranged(scale, quantity, digits) for quantity in (Record.best_accuracy, Record.final_loss)),
        NONE if scale.record.target_accuracy is None else answer,
        _ranged(scale, Record.seconds_to_target, seconds),
        _ranged(scale, Record.samples_to_target, lambda value: NONE if value is None else f"{value:.0f}"),
        _ranged(scale, Record.epochs_to_target, digits),
    )


def _diverged(scale: Scale) -> str:
    steps, tried = [record.diverged_step or 0 for record in diverged(scale.records)], len(scale.records)
    if not steps:
        return ""
    return f"none ({f'{len(steps)} of {tried} ' if tried > 1 else ''}diverged at step {min(steps)})"


def _ranged(scale: Scale, quantity: Quantity[Any], shown: Callable[[Number], str]) -> str:
    """Return the median with its range; neither if some seeds have no value."""
    low, high = scale.bounds(quantity)
    if low is None or high is None:
        return NONE
    return shown(low) if low == high else f"{shown(scale.median(quantity))} ({interval(low, high, shown)})"


def answer(findings: Findings) -> Answer | None:
    """Return per problem what is as accurate as synchronous training, or the range, and how many met targets."""
    verdicts = []
    for methods in findings.problems:
        if learned := _learned(methods):
            name, scales = findings.settings.name(methods[0].record), [row.scale for row in learned]
            cases, counts = plural(sum(len(scale.records) for scale in scales), "case"), ""
            if lost := sum(len(diverged(scale.records)) for scale in scales):
                names = dict.fromkeys(row.name for row in learned if diverged(row.scale.records))
                counts = f"; {lost} of {cases} diverged ({', '.join(names)})"
            if any(scale.record.target_accuracy is not None for scale in scales):
                counts += f"; {sum(map(_reached, scales))} of {cases} reached the target"
            compared = _beside_synchronous(name, learned, counts)
            verdicts.append(compared or _accuracy_range(name, learned, counts))
    verdicts.sort(key=lambda verdict: verdict.word != "compared")
    lines = [verdict.sentence for verdict in verdicts]
    return Answer(lines[0], lines[1:]) if lines else None


def _beside_synchronous(name: str, learned: Sequence[Row], counts: str) -> Verdict | None:
    """Return which methods lose accuracy against dense synchronous training; None without several seeds of it."""
    known = [row for row in learned if not _diverged(row.scale) and row.scale.record.ranks > 1]
    base = [row for row in known if row.name in {"synchronous", "BSP"}][:1]
    paired = [(row, np.array(points_of(row, base[0]))) for row in known if row not in base] if base else []
    paired = [(row, points) for row, points in paired if len(points) > 1]
    if not paired:
        return None
    others, samples = zip(*paired, strict=True)
    change = difference([np.zeros(len(points)) for points in samples], samples)  # by seed: beside no difference
    tied, lower = [], []
    speed = base[0].scale.median(Record.images_per_second)
    for row, points, chance in zip(others, change.value, adjusted(change.p), strict=True):
        own = row.scale.median(Record.images_per_second)
        pace = f", {digits(own / speed)} times its images/s" if own and speed else ""
        if chance < ALPHA and points < 0:
            lower.append((points, f"{row.name} by {digits(-points)} points"))
        else:
            tied.append((-(own or 0.0), f"{row.name} ({points:+.1f} points{pace})"))
    facts = {
        "of": f"{name}: " if name else "",
        "seeds": plural(len(base[0].scale.values(Record.final_accuracy)), "seed"),
        "base": digits(base[0].scale.median(Record.final_accuracy)),
        "tied": _named(tied),
        "lower": _named(lower),
        "counts": counts,
    }
    return Verdict(topic="accuracy", word="compared", case=name, facts=facts)


def _named(ordered: Sequence[tuple[float, str]]) -> str:
    """Return the texts in ascending order, of more than four the first three."""
    texts = [text for _, text in sorted(ordered)]
    return "; ".join(texts if len(texts) < 5 else [*texts[:3], f"{len(texts) - 3} more"]) or "none"


def _accuracy_range(name: str, learned: Sequence[Row], counts: str) -> Verdict:
    single = ", of one seed" if all(len(row.scale.records) == 1 for row in learned) else ""
    facts = {"of": f"{name}: " if name else "", "counts": counts, "single": single}
    known = [row for row in learned if not _diverged(row.scale)]
    if not known:
        return Verdict(topic="accuracy", word="none", case=name, facts=facts)
    ordered = sorted((row.scale.median(Record.final_accuracy) or 0.0, row.name) for row in known)
    (low, least), (high, most) = ((digits(value), method) for value, method in (ordered[0], ordered[-1]))
    facts |= {"low": low, "least": least, "high": high, "most": most}
    word = "range" if low != high else "equal" if len(known) > 1 else "one"
    return Verdict(topic="accuracy", word=word, case=name, facts=facts)


def charts(findings: Findings) -> list[Lines]:
    """Return up to two charts per field: over time and over epochs."""
    columns = ("training_seconds", "epoch")
    return [chart for field in findings.fields for name in columns if (chart := _chart(field, name, findings))]


def _chart(field: Field, column: str, findings: Findings) -> Lines | None:
    every = [candidate.record for candidate in field.candidates]
    several = len({fields.ranks for fields in every}) > 1
    mixed = len({findings.settings.name(fields) for fields in every}) > 1
    names = Names(every)
    series = []
    for candidate in field.candidates:
        points = _points(candidate, column) if candidate.is_evaluated else []
        words = (
            findings.settings.name(candidate.record) if mixed else "",
            names(candidate.record),
            plural(candidate.record.ranks, "rank") if several else "",
        )
        series += [Series(", ".join(filter(None, words)), points)] if points else []
    if all(len(line.points) < 2 for line in series):
        return None
    series.sort(key=lambda line: -line.points[-1].y)
    timed = column == "training_seconds"
    virtual = any(fields.network for fields in every)
    what = f"{'virtual' if virtual else 'training'} time" if timed else "epochs"
    return Lines(
        f"Accuracy over {what}: {', '.join((field.dataset.partition('(')[0], *field.conditions))}",
        Axis(what, seconds if timed else whole),
        Axis("accuracy", digits),
        series,
        "Accuracy on the test set at each evaluation; medians over seeds and launches, bars are their range.",
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
    finite = (row for row in rows if np.isfinite(row).all())  # before training diverged
    return [Point(*row) if len(seen) > 1 else Point(*row[:2]) for row in finite]


SECTION: Final = Declaration(60, page, terminal=("tables",), answer=answer, figures=(charts,))
