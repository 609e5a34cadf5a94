"""Accuracy at the end, its course over time and epochs, and the best methods of each field by several criteria."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any, Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.deciding import Candidate, Field, Ranked, is_evaluated, ranking, rivals
from hpcdl.analysis.run.launches import Launch
from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.judging import judge
from hpcdl.report.formats.cells import NONE, Number, digits, interval, percent, plural, seconds, whole
from hpcdl.report.formats.document import Axis, Chart, Intervals, Lines, Point, Section, Series
from hpcdl.report.formats.tables import Column, table
from hpcdl.report.run.declaration import (
    ACCURACY,
    ACCURACY_NOTE,
    METHOD,
    RANKS,
    STEP,
    Answer,
    Declaration,
    accuracy_at,
    curves,
    hundredths,
    one_table,
    over_cost,
)
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, Scale, changes_of_accuracy, in_points, rows
from hpcdl.report.run.names import (
    MAX_LOSS,
    Names,
    capital,
    in_words,
    legend,
    loss_in_words,
    points_in_words,
    several,
    text_of,
    title_of,
    where,
)
from hpcdl.report.run.warnings import diverged
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
    reached, tried = _reached(row), len(row.scale.records)
    if row.scale.record.target_accuracy is None:
        return NONE
    return f"{reached} of {tried}" if tried > 1 else "yes" if reached else "no"


def _diverged(row: Row) -> str:
    steps, tried = [record.diverged_step or 0 for record in diverged(row.scale.records)], len(row.scale.records)
    share = f"{len(steps)} of {tried} " if tried > 1 else ""
    return f"{share}diverged at step {min(steps)}" if steps else ""


def _final_accuracy(row: Row) -> str:
    """Return the final accuracy of the seeds that did not diverge, and how many did."""
    values = row.scale.values(Record.final_accuracy)
    if not (lost := _diverged(row)) or not values:
        return f"none ({lost})" if lost else _ranged(row, Record.final_accuracy, percent)
    span = "" if len({*map(percent, values)}) == 1 else f" ({interval(min(values), max(values), percent)})"
    return f"{percent(float(np.median(values)))}{span}, {lost}"


def _ranged(row: Row, quantity: Quantity[Any], shown: Callable[[Number], str] = digits) -> str:
    """Return the median with its range; neither if some seeds have no value."""
    low, high = row.scale.bounds(quantity)
    if low is None or high is None:
        return NONE
    middle, alike = shown(row.scale.median(quantity)), shown(low) == shown(high)
    return middle if alike else f"{middle} ({interval(low, high, shown)})"


def _saving(row: Row) -> str:
    """Return how many times fewer bytes a compressor sends."""
    compressed = row.scale.record.compression not in {None, "none"}
    return digits(row.scale.median(Record.compression_ratio)) if compressed else NONE


FASTER: Final = 1.05
"""Least quotient of throughputs that is worth a word."""
BEST: Final = "best accuracy"
"""Column that is shown where the target was missed."""
TIME: Final = "time to target"
"""Column that is shown of real times alone; virtual ones follow from the rates that one chooses."""
COLUMNS: Final[tuple[Column[Row], ...]] = (
    METHOD,
    RANKS,
    Column("final accuracy", _final_accuracy, importance="answer"),
    Column("dense / sent bytes", _saving),
    Column(BEST, lambda row: _ranged(row, Record.best_accuracy, percent)),
    Column("final loss", lambda row: _ranged(row, Record.final_loss), importance="detail"),
    Column("target reached", _target),
    Column(TIME, lambda row: _ranged(row, Record.seconds_to_target, seconds), importance="answer"),
    Column("samples to target", lambda row: _ranged(row, Record.samples_to_target, whole), importance="detail"),
    Column("epochs to target", lambda row: _ranged(row, Record.epochs_to_target), importance="answer"),
)


def page(findings: Findings) -> Section:
    """Return one table per problem."""
    accuracy, time = Record.final_accuracy, Record.seconds_to_target
    order = lambda row: (-(row.scale.median(accuracy) or 0.0), row.scale.median(time) or np.inf)
    tables = []
    for learned in filter(None, (sorted(_learned(methods), key=order) for methods in findings.problems)):
        target = learned[0].scale.record.target_accuracy
        notes = ["No target accuracy was set." if target is None else f"Target accuracy {percent(target)}."]
        if any(len(row.scale.records) > 1 for row in learned):
            notes.append(
                "Numbers are medians over seeds, and over methods that train alike; their range is in parentheses."
            )
        title = findings.settings.title(learned[0].scale.record)
        made = table(COLUMNS, learned, title, notes, order="highest final accuracy first")
        missed = target is not None and any(_reached(row) < len(row.scale.records) for row in learned)
        made = made if missed else made.without(BEST)
        tables.append(made.without(TIME) if learned[0].scale.record.network else made)
    return Section("Accuracy", tables=tables, per="setting")


def answer(findings: Findings) -> Answer | None:
    """Return per problem what methods cost against synchronous training, or the range of accuracies."""
    asked, problems = "accuracy" in findings.answered_by, filter(None, map(_learned, findings.problems))
    paired = [(against_synchronous(learned), learned) for learned in problems if asked or _tells(learned)]
    paired.sort(key=lambda pair: not pair[0])
    lines = [line for some, learned in paired if some for line in (*some, *_lost_cases(learned))]
    others = [learned for some, learned in paired if not some]
    lines += [*map(accuracy_range, others), *(line for learned in others for line in _lost_cases(learned))]
    basis = [record for _, learned in paired[:1] for row in learned for record in row.scale.records]
    return Answer(lines[0], lines[1:], basis) if lines else None


def _tells(learned: Sequence[Row]) -> bool:
    """Return False for equal accuracies of one seed without a target, which are by-products of timing."""
    seeds = max(len(row.scale.records) for row in learned)
    differ = len({percent(row.scale.median(Record.final_accuracy)) for row in learned}) > 1
    return differ or seeds > 1 or learned[0].scale.record.target_accuracy is not None


def _where(learned: Sequence[Row]) -> str:
    return where(max((row.scale.record for row in learned), key=lambda record: record.ranks))


def against_synchronous(learned: Sequence[Row]) -> list[str]:
    """Return what methods cost against dense synchronous training; nothing without several seeds of it.

    First the fastest method whose loss is known to be below :data:`MAX_LOSS`, if none is faster the most accurate
    one; then the largest loss, then the largest one that is not decided.
    """
    trained = [row for row in learned if not _diverged(row) and row.scale.record.ranks > 1]
    same = [row for row in trained if _is_dense_synchronous(row)]
    if not same:
        return []
    base, place = same[0], where(same[0].scale.record)
    other = _name(base) if len(same) > 1 else _strategy(base.scale.record)
    speed = base.scale.median(Record.images_per_second) or math.inf
    others = [row for row in trained if row is not base and row.scale.record.ranks == base.scale.record.ranks]
    changes = changes_of_accuracy(base.scale, (row.scale for row in others))
    costs = [
        (change, (row.scale.median(Record.images_per_second) or 0.0) / speed, _name(row))
        for row, change in zip(others, changes, strict=True)
        if math.isfinite(change.low)
    ]
    lines, kept = list[str](), [cost for cost in costs if cost[0].low >= -MAX_LOSS]
    if kept:
        change, pace, name = max(kept, key=lambda cost: (max(cost[1], FASTER), cost[0]))
        differs = pace and not 1 / FASTER < pace < FASTER
        faster = f" and is {digits(pace, 2)} times as fast" if differs else ""
        lines.append(f"{capital(name)} loses {loss_in_words(change)} against {other}{faster}{place}.")
    rest = sorted((cost for cost in costs if cost not in kept), key=lambda cost: cost[0])
    for change, _, name in [cost for cost in rest if cost[0].high < 0][:1]:
        lines.append(f"{capital(name)} changes the accuracy by {points_in_words(change)} against {other}{place}.")
    for change, _, name in [cost for cost in rest if not cost[0].high < 0][:1]:
        difference = f"the difference from {other} is {points_in_words(change)}"
        lines.append(f"Not decided whether {name} loses accuracy: {difference}{place}.")
    return lines


def _is_dense_synchronous(row: Row) -> bool:
    record = row.scale.record
    return record.compression in {None, "none"} and (record.strategy == "synchronous" or record.system == "BSP")


def _name(row: Row) -> str:
    return in_words(row.name, row.scale.record)


def _strategy(record: Record) -> str:
    return title_of(record.strategy, record.system or "")


def _lost_cases(learned: Sequence[Row]) -> list[str]:
    """Return which methods diverged, and how many cases missed their target."""
    count, lines = sum(len(row.scale.records) for row in learned), []
    if names := dict.fromkeys(_name(row) for row in learned if _diverged(row)):
        lost = sum(len(diverged(row.scale.records)) for row in learned)
        lines.append(f"{lost} of {plural(count, 'case')} diverged, with {several([*names])}{_where(learned)}.")
    reached = sum(map(_reached, learned))
    if learned[0].scale.record.target_accuracy is not None and reached < count:
        lines.append(f"{reached} of {plural(count, 'case')} reached the target accuracy{_where(learned)}.")
    return lines


def accuracy_range(learned: Sequence[Row]) -> str:
    """Return the least and the highest final accuracy of a problem."""
    place, same, final = _where(learned), _same_network(learned), Record.final_accuracy
    accuracy = {_name(row): row.scale.median(final) or 0.0 for row in learned if not _diverged(row)}
    if not accuracy:
        return f"Training diverged with every method{place}."
    least, most = min(accuracy, key=accuracy.__getitem__), max(accuracy, key=accuracy.__getitem__)
    low, high = percent(accuracy[least]), percent(accuracy[most])
    single = ", with one seed each" if all(len(row.scale.records) == 1 for row in learned) else ""
    if len(accuracy) == 1:
        record = learned[0].scale.record
        goal, method = record.target_accuracy, _strategy(record)
        side = "above" if goal is not None and accuracy[most] >= goal else "below"
        compared = "" if goal is None else f", {side} its target of {percent(goal)}"
        batches = f" with batches of {record.global_batch:,} images" if record.global_batch else ""
        return f"The final accuracy of {method}{batches} is {high}{compared}{single.removesuffix(' each')}{place}."
    if low == high:
        every = "Both" if len(accuracy) == 2 else f"All {len(accuracy)}"
        return f"{same}{every} methods reach a final accuracy of {low}{single}{place}."
    return f"{same}Final accuracies range from {low} ({least}) to {high} ({most}){single}{place}."


def _same_network(learned: Sequence[Row]) -> str:
    """Return whether synchronous methods trained one network; empty except for two ranks.

    No order of summation changes the sum of two vectors, so that all schemes must give the same bits.
    """
    records = [record for row in learned for record in row.scale.records if record.ranks == 2]
    recipe_of = attrgetter("strategy", "compression", "optimizer", "schedule", "learning_rate", "seed")
    trained = {(recipe_of(record), record.final_accuracy, record.final_loss) for record in records}
    recipes = {recipe for recipe, *_ in trained}
    if len(learned) < 2 or {recipe[:2] for recipe in recipes} != {("synchronous", "none")}:
        return ""
    return f"Same network: {'yes' if len(trained) == len(recipes) else 'no'}. "


def courses(findings: Findings) -> list[Lines]:
    """Return up to two charts per field: accuracy over time and over epochs."""
    made, settings = list[Lines](), findings.settings
    held_out = any(record.settings.get("validation") for record in findings.records)
    tested = "validation images" if held_out else "the test set"
    note = f"Accuracy on {tested} at each evaluation; medians over seeds and launches, bars are their range."
    for field in findings.fields:
        records = [candidate.record for candidate in field.candidates]
        names, mixed = Names(records), len({settings.name(record) for record in records}) > 1
        place = ", ".join((field.dataset.partition("(")[0], *field.conditions))
        time = "virtual time" if any(record.network for record in records) else "training time"
        for column, axis in (("training_seconds", Axis(time, seconds)), ("epoch", Axis("epochs", whole))):
            lines = []
            for candidate, record in zip(field.candidates, records, strict=True):
                ranks = plural(record.ranks, "rank") if field.has_scales else ""
                words = (settings.name(record) if mixed else "", names(record), ranks)
                shown = 4 if len(candidate.launches) > 1 else 2
                points = [Point(*numbers[:shown]) for numbers in candidate.course(column)]
                lines += [Series(", ".join(filter(None, words)), points)] if points else []
            lines.sort(key=lambda line: -line.points[-1].y)
            if any(len(line.points) > 1 for line in lines):
                title = f"Accuracy over {axis.label}: {place}"
                made.append(Lines(title, axis, Axis("accuracy", hundredths), lines, note))
    return made


def charts(findings: Findings) -> Sequence[Chart]:
    """Return accuracy over time and epochs, and first over the step or by method, where accuracy answers."""
    asked = findings.problems if "accuracy" in findings.answered_by[:1] else ()
    first = [methods[0].record for methods in asked]
    titles = [findings.settings.name(one) or str(one.dataset).partition("(")[0] for one in first]
    groups = [(title, "", _learned(methods)) for title, methods in zip(titles, asked, strict=True)]
    if not any(record.network for record in findings.records):
        return [*over_cost(groups, STEP), *courses(findings)]
    return [*(chart for title, _, learned in groups for chart in by_method(title, learned)), *courses(findings)]


def by_method(title: str, learned: Sequence[Row]) -> list[Chart]:
    """Return charts of final accuracies by method and over ranks, of virtual time, whose steps tell nothing."""
    final = Record.final_accuracy
    trained = [row for row in learned if row.scale.values(final)]
    trained.sort(key=lambda row: -(row.scale.median(final) or 0.0))
    names = legend([(row.name, row.scale.record) for row in trained])
    several_ranks, labels = len({row.scale.record.ranks for row in trained}) > 1, dict[str, list[Point]]()
    lines = dict[str, list[Point]]()
    for name, row in zip(names, trained, strict=True):
        record = row.scale.record
        own = "" if record.tuning_like else f", rate {text_of(record, 'learning_rate')}"
        lost = f" ({_diverged(row).partition(' at ')[0]})" if _diverged(row) else ""
        ranks = f", {plural(record.ranks, 'rank')}" if several_ranks else ""
        labels[f"{name}{ranks}{lost}"] = accuracy_at(row.scale, 1.0)
        lines.setdefault(name.removesuffix(own), []).extend(accuracy_at(row.scale, record.ranks))
    values = [(middle, low, high) for points in labels.values() for _, middle, low, high in points]
    dense = next((row for row in trained if _is_dense_synchronous(row)), None)
    base = dense.scale.median(final) if dense else None
    note = f"{ACCURACY_NOTE}{' Dashed: synchronous training.' if dense else ''}"
    by_name = Intervals(f"Accuracy by method: {title}", [*labels], values, ACCURACY, base, note)
    over_ranks = (Axis("ranks", whole, 2), ACCURACY)
    charts = curves(f"Accuracy over ranks: {title}", over_ranks, lines, ACCURACY_NOTE)
    return [*([by_name] if len(labels) > 2 else []), *charts]


SECTION: Final = Declaration(60, page, answer=answer, figures=(charts,))

AT_END: Final = "accuracy at the end"


class Best(NamedTuple):
    """The methods of a field by a criterion."""

    field: Field
    names: Names
    criterion: str
    budget: str
    ranked: Sequence[Ranked]
    rivals: Sequence[Candidate] = ()
    """Methods that are not decidedly worse than the best."""

    @property
    def value(self) -> str:
        """Value of the best."""
        best = self.ranked[0]
        return percent(best.center) if best.side.unit == "seed" else f"{digits(best.center)} images/s"

    def name(self, candidate: Candidate, *, words: bool = False) -> str:
        """Return the name of a method, in words for a sentence, with its ranks if others have more."""
        record, most = candidate.record, max(other.record.ranks for other in self.field.candidates)
        name = in_words(self.names(record), record) if words else self.names(record)
        return name + (f" on {plural(record.ranks, 'rank')}" if record.ranks < most else "")

    @property
    def tied(self) -> str:
        """The rivals by name."""
        if len(self.ranked[0].side.values) == 1:
            return "unknown: one value each"
        every = len(self.rivals) == len(self.ranked) - 1 > 1
        return "all others" if every else several([*map(self.name, self.rivals)])


def _speed(launch: Launch) -> float:
    return launch.images_per_second if len(launch.seconds) and not launch.disturbed else np.nan


def _accuracy(launch: Launch, *, by: str = "epoch", budget: float = np.inf, last: bool = False) -> float:
    """Return the best accuracy, or the last one, of the evaluations within a budget; -infinity if it diverged."""
    if launch.diverged or not is_evaluated(launch):
        return -np.inf if launch.diverged else np.nan
    seen = launch.evaluations["accuracy"][launch.evaluations[by] <= budget * (1 + 1e-9)]
    return float(seen[-1] if last else seen.max()) if len(seen) else np.nan


BEST_NOTE: Final = (
    "Budget: the longest time, or most epochs, that every method trained. Accuracies are means over seeds and "
    "launches. Images per second: all measured images / the time that they took, the median over undisturbed "
    "launches, then over seeds. Tied: the method is not decidedly worse than the best one; one "
    "seed or launch decides nothing. The accuracy at the end is from the last evaluation; the accuracy within a "
    "budget is the best one until then."
)
BEST_COLUMNS: Final = (
    Column[Best]("dataset", lambda best: best.field.dataset.partition("(")[0]),
    Column[Best]("conditions", lambda best: ", ".join(best.field.conditions) or NONE),
    Column[Best]("criterion", lambda best: best.criterion),
    Column[Best]("budget", lambda best: best.budget),
    Column[Best]("method", lambda best: best.names(best.ranked[0].candidate.record), importance="answer"),
    Column[Best]("ranks", lambda best: str(best.ranked[0].candidate.record.ranks)),
    Column[Best]("value", lambda best: best.value, importance="answer"),
    Column[Best]("tied with", lambda best: best.tied, importance="answer"),
    Column[Best]("of", lambda best: str(len(best.ranked))),
)


def _best(findings: Findings) -> list[Best]:
    """Return the best methods of each field with at least two, by each criterion.

    Budgets are the largest that every method ran through.
    """
    made = []
    for field in findings.fields:
        names = Names(candidate.record for candidate in field.candidates)
        launches = [each for candidate in field.candidates for each in candidate.launches if is_evaluated(each)]
        time, epochs = (
            min((float(launch.evaluations[column].max()) for launch in launches), default=0.0)
            for column in ("training_seconds", "epoch")
        )
        speed = ranking(field, methodcaller("by_launch", _speed))
        made.append(Best(field, names, "images per second", NONE, speed))
        for criterion, budget, accuracy in (
            (AT_END, NONE, partial(_accuracy, last=True)),
            ("accuracy within a time", seconds(time), partial(_accuracy, by="training_seconds", budget=time)),
            ("accuracy within epochs", digits(epochs), partial(_accuracy, budget=epochs)),
        ):
            ranked = ranking(field, methodcaller("by_seed", accuracy))
            made.append(Best(field, names, criterion, budget, ranked))
    known = [best for best in made if len(best.ranked) > 1]
    units = [
        [n for n, best in enumerate(known) if best.ranked[0].side.unit == unit] for unit in ("launch", "seed")
    ]
    judged = {n: some for of in units for n, some in zip(of, rivals([known[n].ranked for n in of]), strict=True)}
    return [best._replace(rivals=judged[number]) for number, best in enumerate(known)]


def best_page(findings: Findings) -> Section:
    """Return up to four rows for each dataset and conditions with at least two methods."""
    return one_table("Best methods", BEST_COLUMNS, findings.once(_best), BEST_NOTE, left=6)


def best_answer(findings: Findings) -> Answer | None:
    """Return, if the suite asks, which method is most often best; of one field how far best and last end apart."""
    best = findings.once(_best) if "best_methods" in findings.answered_by else []
    if not best:
        return None
    fields = len(best) // len({each.criterion for each in best})
    if fields == 1:
        at_end = next(each for each in best if each.criterion == AT_END)
        trained = [one for one in at_end.ranked if -math.inf not in one.side.values.values()]
        highest, *_, lowest = trained if len(trained) > 1 else at_end.ranked
        ((below,),) = judge([[highest.side, lowest.side]], quotient=False)
        mean, low, high = (f"{bound:.1f}" for bound in in_points(below.size))
        methods = (at_end.name(ranked.candidate, words=True) for ranked in (lowest, highest))
        doubt = "Not decided whether methods differ: " if lowest.candidate in at_end.rivals else ""
        lower = f" reaches a final accuracy {mean} percentage points ({low} to {high}) lower than "
        return Answer(capital(doubt + lower.join(methods) + "."))
    first, among = dict[str, Counter[str]](), Counter[str]()
    for each in best:
        names = [each.name(candidate, words=True) for candidate in (each.ranked[0].candidate, *each.rivals)]
        first.setdefault(each.criterion, Counter())[names[0]] += 1
        among.update(names)
    (method, number), *_ = among.most_common(1)
    comparisons = f"{len(best)} comparisons, by four criteria in {plural(fields, 'configuration')}"
    lines = []
    for name, won in first.items():
        shares = several([f"{winner} in {count}" for winner, count in won.most_common()])
        lines.append(f"Best by {name}: {shares} of {fields} configurations.")
    return Answer(f"{capital(method)} is the best method, alone or tied, in {number} of {comparisons}.", lines)


BEST_METHODS: Final = Declaration(30, best_page, answer=best_answer, name="best_methods")
