"""Accuracy at the end, its course over time and epochs, and the best methods by speed and by accuracy.

The table of accuracies has the methods and scales of a problem; best methods and courses are those of the
candidates of a field (:mod:`hpcdl.analysis.run.deciding`), which may be of several problems.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.deciding import Field, Ranked, is_evaluated, ranking, tied
from hpcdl.analysis.run.launches import Launch
from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.differences import ALPHA, adjusted, difference
from hpcdl.analysis.statistics.estimates import Vector
from hpcdl.report.formats.cells import NONE, Number, digits, interval, plural, seconds, whole
from hpcdl.report.formats.document import Axis, Column, Lines, Point, Section, Series, table
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.columns import METHOD, RANKS
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, Scale, rows
from hpcdl.report.run.method_names import Names, several
from hpcdl.report.run.warnings import diverged
from hpcdl.report.sections.compression import points_of
from hpcdl.trace.quantity import Quantity


def _learned(methods: Sequence[Method]) -> list[Row]:
    """Return rows with an accuracy, or that diverged; ranks that do not communicate are left out."""
    return [
        member
        for row in rows(methods)
        if (row.scale.values(Record.final_accuracy) or diverged(row.scale.records)) and not row.no_communication
        for member in ([row] if _learned_alike(row.scale) else row.members)
    ]


def _learned_alike(scale: Scale) -> bool:
    """Return True if all records of a seed have the same accuracy and loss, to the shown digits."""
    shown = {(record.seed, digits(record.final_accuracy), digits(record.final_loss)) for record in scale.records}
    return len(shown) == len({record.seed for record in scale.records})


def _reached(row: Row) -> int:
    return len(row.scale.values(Record.seconds_to_target))


def _target(row: Row) -> str:
    if row.scale.record.target_accuracy is None:
        return NONE
    reached, tried = _reached(row), len(row.scale.records)
    return f"{reached} of {tried}" if tried > 1 else "yes" if reached else "no"


def _diverged(row: Row) -> str:
    steps, tried = [record.diverged_step or 0 for record in diverged(row.scale.records)], len(row.scale.records)
    if not steps:
        return ""
    return f"none ({f'{len(steps)} of {tried} ' if tried > 1 else ''}diverged at step {min(steps)})"


def _ranged(row: Row, quantity: Quantity[Any], shown: Callable[[Number], str] = digits) -> str:
    """Return the median with its range; neither if some seeds have no value."""
    low, high = row.scale.bounds(quantity)
    if low is None or high is None:
        return NONE
    return shown(low) if low == high else f"{shown(row.scale.median(quantity))} ({interval(low, high, shown)})"


BEST: Final = Column[Row]("best accuracy", lambda row: _ranged(row, Record.best_accuracy))
"""Of interest where the target was missed."""
COLUMNS: Final[tuple[Column[Row], ...]] = (
    METHOD,
    RANKS,
    Column(
        "final accuracy", lambda row: _diverged(row) or _ranged(row, Record.final_accuracy), importance="answer"
    ),
    BEST,
    Column("final loss", lambda row: _ranged(row, Record.final_loss), importance="detail"),
    Column("target reached", _target),
    Column("time to target", lambda row: _ranged(row, Record.seconds_to_target, seconds), importance="answer"),
    Column("samples", lambda row: _ranged(row, Record.samples_to_target, "{:.0f}".format), importance="detail"),
    Column("epochs", lambda row: _ranged(row, Record.epochs_to_target), importance="detail"),
)


def page(findings: Findings) -> Section:
    """Return one table per problem."""

    def order(row: Row) -> tuple[float, float]:
        time = row.scale.median(Record.seconds_to_target)
        return -(row.scale.median(Record.final_accuracy) or 0.0), np.inf if time is None else time

    tables = []
    for methods in findings.problems:
        record, learned = methods[0].record, sorted(_learned(methods), key=order)
        if not learned:
            continue
        target = record.target_accuracy
        notes = ["No target accuracy was set." if target is None else f"Target accuracy {digits(target)}."]
        if any(len(row.scale.records) > 1 for row in learned):
            notes.append("Medians, with their range where they differ, over seeds and over pooled methods.")
        title, words = findings.settings.title(record), "highest final accuracy first"
        made = table(COLUMNS, learned, title, notes, order=words)
        missed = target is not None and any(_reached(row) < len(row.scale.records) for row in learned)
        tables.append(made if missed else made.without(BEST.heading))
    return Section("Accuracy", tables=tables, per="setting")


def answer(findings: Findings) -> Answer | None:
    """Return per problem what is as accurate as synchronous training, or the range, and how many met targets."""
    problems = [(findings.settings.name(methods[0].record), _learned(methods)) for methods in findings.problems]
    verdicts = [beside_synchronous(*problem) or accuracy_range(*problem) for problem in problems if problem[1]]
    verdicts.sort(key=lambda verdict: verdict.word != "compared")
    lines = [verdict.sentence for verdict in verdicts]
    return Answer(lines[0], lines[1:]) if lines else None


def _facts(name: str, learned: Sequence[Row]) -> dict[str, str]:
    """Return the facts of all sentences on accuracy: the problem, and how many diverged and reached a target."""
    cases, counts = plural(sum(len(row.scale.records) for row in learned), "case"), ""
    if lost := sum(len(diverged(row.scale.records)) for row in learned):
        names = dict.fromkeys(row.name for row in learned if _diverged(row))
        counts = f"; {lost} of {cases} diverged ({', '.join(names)})"
    if any(row.scale.record.target_accuracy is not None for row in learned):
        counts += f"; {sum(map(_reached, learned))} of {cases} reached the target"
    return {"of": f"{name}: " if name else "", "counts": counts}


def beside_synchronous(name: str, learned: Sequence[Row]) -> Verdict | None:
    """Return which methods lose accuracy against dense synchronous training; None without several seeds of it."""
    trained = [row for row in learned if not _diverged(row) and row.scale.record.ranks > 1]
    base = next((row for row in trained if row.name in {"synchronous", "BSP"}), None)
    paired = [(row, np.array(points_of(row, base))) for row in trained if row is not base] if base else []
    paired = [(row, points) for row, points in paired if len(points) > 1]
    if not base or not paired:
        return None
    others, samples = zip(*paired, strict=True)
    change = difference([np.zeros(len(points)) for points in samples], samples)  # by seed: beside no difference
    alike, lower = [], []
    speed = base.scale.median(Record.images_per_second)
    for row, points, chance in zip(others, change.value, adjusted(change.p), strict=True):
        images = row.scale.median(Record.images_per_second)
        pace = f", {digits(images / speed)} times its images/s" if images and speed else ""
        if chance < ALPHA and points < 0:
            lower.append((points, f"{row.name} by {digits(-points)} points"))
        else:
            alike.append((-(images or 0.0), f"{row.name} ({points:+.1f} points{pace})"))
    facts = {
        **_facts(name, learned),
        "seeds": plural(len(base.scale.values(Record.final_accuracy)), "seed"),
        "base": digits(base.scale.median(Record.final_accuracy)),
        "tied": several([text for _, text in sorted(alike)], 4, "none"),
        "lower": several([text for _, text in sorted(lower)], 4, "none"),
    }
    return Verdict(topic="accuracy", word="compared", case=name, facts=facts)


def accuracy_range(name: str, learned: Sequence[Row]) -> Verdict:
    """Return the least and the highest final accuracy of a problem."""
    single = ", of one seed" if all(len(row.scale.records) == 1 for row in learned) else ""
    facts, word = {**_facts(name, learned), "single": single}, "none"
    trained = [row for row in learned if not _diverged(row)]
    ordered = sorted((row.scale.median(Record.final_accuracy) or 0.0, row.name) for row in trained)
    if ordered:
        (low, least), (high, most) = ((digits(value), method) for value, method in (ordered[0], ordered[-1]))
        facts |= {"low": low, "least": least, "high": high, "most": most}
        word = "range" if low != high else "equal" if len(ordered) > 1 else "one"
    return Verdict(topic="accuracy", word=word, case=name, facts=facts)


def courses(findings: Findings) -> list[Lines]:
    """Return up to two charts per field: accuracy over time and over epochs."""
    columns = ("training_seconds", "epoch")
    return [chart for field in findings.fields for name in columns if (chart := _course(field, name, findings))]


def _course(field: Field, column: str, findings: Findings) -> Lines | None:
    records, settings = [candidate.record for candidate in field.candidates], findings.settings
    mixed = len({settings.name(record) for record in records}) > 1
    names, lines = Names(records), []
    for candidate, record in zip(field.candidates, records, strict=True):
        words = (settings.name(record) if mixed else "", names(record), _ranks(field, record))
        shown = 4 if len(candidate.launches) > 1 else 2
        points = [Point(*numbers[:shown]) for numbers in candidate.course(column)]
        lines += [Series(", ".join(filter(None, words)), points)] if points else []
    if all(len(line.points) < 2 for line in lines):
        return None
    lines.sort(key=lambda line: -line.points[-1].y)
    timed, virtual = column == "training_seconds", any(record.network for record in records)
    what = f"{'virtual' if virtual else 'training'} time" if timed else "epochs"
    return Lines(
        f"Accuracy over {what}: {', '.join((field.dataset.partition('(')[0], *field.conditions))}",
        Axis(what, seconds if timed else whole),
        Axis("accuracy", digits),
        lines,
        "Accuracy on the test set at each evaluation; medians over seeds and launches, bars are their range.",
    )


def _ranks(field: Field, record: Record) -> str:
    """Return the number of ranks where those of a field differ."""
    return plural(record.ranks, "rank") if field.has_scales else ""


SECTION: Final = Declaration(60, page, answer=answer, figures=(courses,))


class Criterion(NamedTuple):
    """A question about the methods of a field, and what answers it."""

    question: str
    value: Callable[[Launch], float]
    """Of a launch; not a number if unknown."""
    budget: str = NONE
    unit: str = ""
    center: Callable[[Sequence[Vector]], float] = lambda seeds: float(np.mean(np.concatenate(seeds)))


class Best(NamedTuple):
    """The methods of a field by a criterion."""

    field: Field
    criterion: Criterion
    ranked: Sequence[Ranked]
    names: Names

    @property
    def tied(self) -> str:
        """Methods that are not distinguished from the best."""
        if len(self.ranked[0].values) == 1:
            return "unknown: one value each"
        records = [candidate.record for candidate in tied(self.ranked)]
        if len(records) == len(self.ranked) - 1 > 1:
            return "any other"
        return several([" on ".join(filter(None, (self.names(x), _ranks(self.field, x)))) for x in records])


def _criteria(field: Field) -> list[Criterion]:
    """Return the questions; their budgets are those that every method ran through."""
    seen = [launch.evaluations for candidate in field.candidates for launch in candidate.launches]
    time, epochs = (
        min((float(evaluations[column].max()) for evaluations in seen if len(evaluations)), default=0.0)
        for column in ("training_seconds", "epoch")
    )
    return [
        Criterion("fastest: most images per second", _speed, unit=" images/s", center=_middle),
        Criterion("highest accuracy at the end", lambda launch: _accuracy(launch, "epoch", np.inf, last=True)),
        Criterion(
            "best accuracy within a time",
            lambda launch: _accuracy(launch, "training_seconds", time),
            seconds(time),
        ),
        Criterion(
            "best accuracy within a number of epochs",
            lambda launch: _accuracy(launch, "epoch", epochs),
            digits(epochs),
        ),
    ]


def _middle(seeds: Sequence[Vector]) -> float:
    return float(np.median([np.median(values) for values in seeds]))


def _speed(launch: Launch) -> float:
    return launch.images_per_second if len(launch.seconds) and not launch.disturbed else np.nan


def _accuracy(launch: Launch, column: str, budget: float, *, last: bool = False) -> float:
    """Return the best accuracy, or the last one, of the evaluations within a budget; NaN if training diverged."""
    if launch.diverged or not is_evaluated(launch):
        return np.nan
    seen = launch.evaluations["accuracy"][launch.evaluations[column] <= budget * (1 + 1e-9)]
    return float(seen[-1] if last else seen.max()) if len(seen) else np.nan


BEST_NOTE: Final = (
    "A budget is the largest that every method ran through. Accuracies are means over seeds and launches. "
    "Images/s: all measured images by the time that they took, the median over undisturbed launches, then over "
    "seeds. Tied: Welch's test, adjusted for the number of methods, does not distinguish it from the best; one "
    "seed or launch cannot. At the end: the last evaluation; within a budget: the best until then."
)
BEST_METHODS: Final = (
    Column[Best]("dataset", lambda best: best.field.dataset),
    Column[Best]("conditions", lambda best: ", ".join(best.field.conditions) or NONE),
    Column[Best]("question", lambda best: best.criterion.question),
    Column[Best]("budget", lambda best: best.criterion.budget),
    Column[Best]("method", lambda best: best.names(best.ranked[0].candidate.record), importance="answer"),
    Column[Best]("ranks", lambda best: str(best.ranked[0].candidate.record.ranks)),
    Column[Best](
        "value", lambda best: f"{digits(best.ranked[0].center)}{best.criterion.unit}", importance="answer"
    ),
    Column[Best]("tied with", lambda best: best.tied, importance="answer"),
    Column[Best]("of", lambda best: str(len(best.ranked))),
)


def best_methods_page(findings: Findings) -> Section:
    """Return up to four rows for each dataset and conditions with at least two methods."""
    best = [
        Best(field, criterion, ranked, Names(candidate.record for candidate in field.candidates))
        for field in findings.fields
        for criterion in _criteria(field)
        if len(ranked := ranking(field, criterion.value, criterion.center)) > 1
    ]
    return Section("Best methods", tables=[table(BEST_METHODS, best, notes=[BEST_NOTE], left=6)] if best else [])


BEST_METHODS_SECTION: Final = Declaration(30, best_methods_page, name="best_methods")
