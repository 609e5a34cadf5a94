"""Contrast: cases that differ in one key, compared by one measure.

A suite states it, ``compare = {aggregation = ["ring", "parameter_server"], measure = "step"}``, or varies one key
only. Cases are compared that are equal but for this key: on equally many ranks, on one problem, with one method.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.launches import Launch, undisturbed
from hpcdl.analysis.run.record import Key, Record, group_by_key
from hpcdl.analysis.statistics.estimates import Interval, difference_interval, ratio_interval
from hpcdl.cases.keys.key import keys, plain
from hpcdl.cases.keys.suite_tables import column_of, role_of
from hpcdl.exit_codes import UsageError
from hpcdl.registry import label, nearest, parts
from hpcdl.report.formats.cells import CHANCE, FORMATS, bounded, digits, plural, volume
from hpcdl.report.formats.document import Axis, Intervals, Section
from hpcdl.report.formats.tables import Column
from hpcdl.report.run.declaration import Answer, Declaration, one_table
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import ABSENT, Scale
from hpcdl.report.run.literature import capital, link_title, slowed, title_of
from hpcdl.report.run.method_names import Names
from hpcdl.suite import Suite, head
from hpcdl.trace.quantities import QUANTITIES, CommonNumbers, OperationNumbers, TrainingNumbers
from hpcdl.trace.quantity import Quantity, declared

TIMES: Final[tuple[Quantity[Any], ...]] = (Record.step_seconds, Record.time_p50_seconds)
"""Measures of which each launch has a vector: the step of a training, the time of another operation."""
MEASURES: Final = {
    quantity.name.removesuffix("_seconds"): quantity
    for chapter in (TrainingNumbers, OperationNumbers, CommonNumbers)
    for quantity in declared(chapter)
    if {"number", "integer"} & {*quantity.types} and not re.search("_(low|high)(_|$)", quantity.name)
}
"""Measures by the name that a suite writes."""
VERBS: Final = {"s": "takes", "B": "needs", "B/s": "reaches", "": "has"}
"""Verb of a sentence about a quotient, by the unit."""
VARIED: Final = ("problem", "method", "condition", "machine")
"""Roles of the keys of which a suite without ``answer`` varies one."""


@dataclass(frozen=True)
class Compare:
    """What is compared: the values of a key, by a measure."""

    key: str
    values: Sequence[str]
    """Labels; empty: all that occur, the best first."""
    measure: str
    """Name in :data:`MEASURES`; empty: the time of a step, or of the operation."""

    def value(self, record: Record) -> str:
        """Return the value of the key in a case: one of :attr:`values`, or empty if it is none of these."""
        text = value_of(record, self.key)
        if not self.values or text in self.values:
            return text
        name = parts(text)[0]
        return name if name in self.values else ""


def value_of(record: Record, key: str) -> str:
    """Return the value of a key in a case, as a suite writes it."""
    return label(record.settings[key]) if key in record.settings else str(record.stated(column_of(key)) or "none")


def _read(table: object) -> Compare:
    """Return what ``compare`` of a suite states. Raises TypeError or ValueError."""
    if not isinstance(table, dict):
        raise TypeError(f"must be a table, not {table!r}")
    named = {name: values for name, values in table.items() if name != "measure"}
    if len(named) != 1:
        raise ValueError('must have one key of the cases, such as {aggregation = ["ring", "tree"]}')
    ((key, values),) = named.items()
    if not isinstance(values, list) or len(values) < 2:
        raise ValueError(f"{key}: must be a list of two values or more")
    measure = str(table.get("measure", ""))
    if measure and measure not in MEASURES:
        raise ValueError(f"measure: unknown {measure!r}{nearest(measure, MEASURES)}")
    return Compare(key, [label(value) for value in values], measure)


def check(suite: Suite, source: object) -> None:
    """Raise UsageError if ``compare`` of a suite names a key, a value or a measure that it does not have."""
    where, cases = f"{source}: [suite]: compare", (*suite.cases, *suite.others)
    valid = {name for case in cases for name in keys(type(case.spec))}
    try:
        compare = _read(suite.table["compare"])
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error}") from None
    if compare.key not in valid:
        raise UsageError(f"{where}: unknown {compare.key!r}{nearest(compare.key, valid)}")
    settings = [case.setting(compare.key) for case in cases]
    labels = {label(plain(setting)) if setting else "none" for setting in settings}
    labels |= {name for name, _ in map(parts, labels) if name}
    for value in compare.values:
        if value not in labels:
            raise UsageError(f"{where}: {compare.key}: no case has {value!r}{nearest(value, labels)}")


def stated(findings: Findings) -> Compare | None:
    """Return what the suite compares: what it states, else, without an ``answer``, the only key that it varies."""
    suite = head(findings.run.suite)
    with suppress(TypeError, ValueError):  # a report cannot mend a suite that has run
        if "compare" in suite:
            return _read(suite["compare"])
    named = {name for record in findings.records for name in record.settings if role_of(name) in VARIED}
    varied = [name for name in named if len({value_of(record, name) for record in findings.records}) > 1]
    return Compare(varied[0], (), "") if len(varied) == 1 and not {"answer", "compare"} & {*suite} else None


class Side(NamedTuple):
    """Cases with one value of the key."""

    name: str
    records: list[Record]
    """One per seed."""
    launches: list[Launch]


class Pair(NamedTuple):
    """Two sides that are equal but for the key."""

    key: str
    where: str
    """Operation, ranks, problem and method, in words."""
    first: Side
    other: Side
    measure: str
    """Name in :data:`MEASURES`."""
    size: Interval
    """Quotient, or difference of accuracies."""
    rivals: int
    """Values of the key that were compared with the first."""

    @property
    def record(self) -> Record:
        """Of the first side's first seed."""
        return self.first.records[0]

    @property
    def word(self) -> str:
        """The verdict."""
        quantity, sides = MEASURES[self.measure], (self.first, self.other)
        records = [record for side in sides for record in side.records]
        exact = quantity.unit == "B" or "integer" in quantity.types or all(record.is_exact for record in records)
        equal = 0.0 if is_difference(quantity) else 1.0
        if not (exact or quantity.seeded) and any(record.disturbed for record in records):
            return "disturbed"
        if quantity.seeded or not exact:
            samples = [undisturbed(side.launches) if quantity in TIMES else side.records for side in sides]
            if min(map(len, samples)) < 2 or not math.isfinite(self.size.low):
                return "single"
            if self.size.low <= equal <= self.size.high:
                return "not distinguished"
        less = self.size.value < equal
        if self.size.value == equal or not quantity.better:
            return "equal" if self.size.value == equal else "less" if less else "more"
        return "better" if less == (quantity.better == "lower") else "worse"

    @property
    def shown(self) -> str:
        """Quotient, or difference in percentage points, with its interval."""
        is_share = is_difference(MEASURES[self.measure])
        value, low, high = (100 * bound if is_share else bound for bound in self.size)
        return bounded(value, low, high, "{:+.1f}".format if is_share else digits)


def is_difference(quantity: Quantity[Any]) -> bool:
    """Return True if a quantity is compared by a difference in percentage points: an accuracy."""
    return quantity.name.endswith("accuracy")


def pairs(findings: Findings) -> list[Pair]:
    """Return the sides that are compared; those of training, and those on the most ranks, come first.

    Two values are compared in the suite's order; of more, the best by the measure is compared with each other one.
    """
    compare = stated(findings)
    if compare is None:
        return []
    frames: dict[Key, dict[str, dict[Key, Side]]] = {}
    """Sides by problem and ranks, by value, and by method."""

    def side(record: Record) -> Side:
        problem, *method = _without(record, compare.key).configuration(compare.key)
        ranks, value = 0 if compare.key == "ranks" else record.ranks, compare.value(record)
        sides = frames.setdefault((problem, ranks), {}).setdefault(value, {})
        return sides.setdefault(tuple(method), Side(value, [], []))

    for launch in findings.launches:
        if compare.value(launch.record) and len(launch.seconds):
            side(launch.record).launches.append(launch)
    for record in findings.records:
        if compare.value(record) and not record.error:
            side(record).records.append(record)
    found = [pair for values in frames.values() for pair in _paired(compare, values)]
    found.sort(key=lambda pair: (not pair.record.is_training, -pair.record.ranks, pair.record.message_bytes or 0))
    shown = list[Pair]()
    for alike in group_by_key((pair.record.is_training, pair) for pair in found).values():
        cases = [_without(pair.record, compare.key) for pair in alike]
        names = [*map(Names(cases), cases)]
        methods = names if len({*names}) > 1 else [""] * len(names)  # that of all is left out
        shown += [p._replace(where=_where(findings, p, name)) for p, name in zip(alike, methods, strict=True)]
    return shown


def _without(record: Record, key: str) -> Record:
    """Return a case without the value of the key."""
    column = column_of(key)
    return record.but(**{column: None}) if column in QUANTITIES and column != "ranks" else record


def _where(findings: Findings, pair: Pair, method: str) -> str:
    """Return problem, method and ranks of a pair, in words; what both sides' names state is left out."""
    record = pair.record
    slow = record.straggler if pair.key == "straggler" else None
    stated = (pair.first.name, pair.other.name, ABSENT.get(pair.key), slow)
    problem = findings.settings.name(record).split(", ") if record.is_training else []
    words = [word for word in problem if word and word not in stated]
    words += [title_of(name) for name in method.split(", ") if name and name not in stated]
    named = ", ".join(words)
    size = f" of {volume(record.message_bytes)}" if record.message_bytes else ""
    operation = "step" if record.is_training else f"{record.collective or record.kind}{size}"
    article = "an" if operation.startswith(("a", "e")) else "a"
    ranks = "" if pair.key == "ranks" else f" on {plural(record.ranks, 'rank')}"
    return f"for {article} {operation}{ranks}" + (f" ({named})" if named else "")


def _named(key: str, side: Side) -> str:
    """Return a side in words, to begin a sentence."""
    if key == "ranks":
        return f"a job of {plural(int(side.name), 'rank')}"
    if key == "straggler":
        return f"training with {slow}" if (slow := _slow(side)) else "training without a slow rank"
    return link_title(side.name) if key == "network" else title_of(side.name)


def _compared(pair: Pair) -> str:
    """Return both sides, as briefly as a table has them."""
    sides = pair.first, pair.other
    straggler = pair.key == "straggler"
    return " / ".join((_slow(side) or "no slow rank") if straggler else side.name for side in sides)


def _slow(side: Side) -> str:
    return slowed(side.records[0].straggler or "")


def _paired(compare: Compare, values: Mapping[str, Mapping[Key, Side]]) -> list[Pair]:
    """Return the pairs of one problem on one number of ranks.

    Sides have one method, but for the key; two values with one method each are compared although these differ, as
    a strategy may need a rate of its own.
    """
    methods = dict.fromkeys(method for sides in values.values() for method in sides)
    groups = [{value: sides[method] for value, sides in values.items() if method in sides} for method in methods]
    if all(len(sides) == 1 for sides in values.values()):
        groups = [{value: side for value, sides in values.items() for side in sides.values()}]
    return [pair for group in groups if len(group) > 1 for pair in _against(compare, group)]


def _against(compare: Compare, group: Mapping[str, Side]) -> list[Pair]:
    """Return the pairs of the first value, or of several the best, with each other one."""
    order = [value for value in compare.values if value in group] or list(group)
    sides = [group[value] for value in order if group[value].records and group[value].launches]
    if len(sides) < 2:
        return []
    measure = compare.measure or ("step" if sides[0].records[0].is_training else "time_p50")
    quantity = MEASURES[measure]
    if len(sides) > 2:
        sign = -1 if quantity.better == "higher" else 1
        middles = [sign * (Scale(side.records).median(quantity) or math.inf) for side in sides]
        sides = [sides[place] for place in np.argsort(middles, kind="stable")]
    first, *others = sides
    key, record, apart = compare.key, first.records[0], others
    if record.ranks == 1:  # the network makes no difference, nor does the aggregation
        is_method, is_network = role_of(key) == "method", key == "network"
        apart = [o for o in others if not (is_network or (is_method and record.method == o.records[0].method))]
    every = [Pair(key, "", first, other, measure, _size(first, other, quantity), len(others)) for other in apart]
    return [pair for pair in every if math.isfinite(pair.size.value)]


def _size(first: Side, other: Side, quantity: Quantity[Any]) -> Interval:
    """Return the quotient of two sides, or the difference of accuracies; each seed is a sample."""
    if quantity in TIMES:
        fair = [undisturbed(side.launches) for side in (first, other)]
        times = [[launch.seconds for launch in side] for side in fair]
        return ratio_interval(*times, middles=(fair[0][0].middle, fair[1][0].middle))
    vectors = [[np.array([value]) for value in Scale(side.records).values(quantity)] for side in (first, other)]
    return (difference_interval if is_difference(quantity) else ratio_interval)(*vectors)


def _sentence(pair: Pair) -> str:
    quantity = MEASURES[pair.measure]
    first, other = (_named(pair.key, side) for side in (pair.first, pair.other))
    other += f", the next of {pair.rivals + 1}," if pair.rivals > 1 else ""
    noun = quantity.heading or quantity.name.removesuffix("_seconds").replace("_", " ")
    timed = quantity in TIMES
    if is_difference(quantity):
        size = f"changes the {noun} by {pair.shown} percentage points against {other}"
    elif not timed:
        size = f"{VERBS[quantity.unit]} {pair.shown} times the {noun} of {other}"
    elif pair.word == "better":
        value, low, high = (1 / bound if bound else math.inf for bound in pair.size)
        size = f"is {bounded(value, high, low)} times as fast as {other}"
    else:
        size = f"takes {pair.shown} times as long as {other}"
    ending = f": {CHANCE if pair.word == 'not distinguished' else pair.word}"
    if pair.word in {"single", "disturbed"}:
        single = f"one {'launch' if timed else 'seed'} decides nothing"
        ending = f": not decided, as {single if pair.word == 'single' else 'other load disturbed it'}"
    elif timed and pair.word in {"better", "worse"}:  # the sentence states who is faster
        ending = ""
    return f"{capital(first)} {size} {pair.where}{ending}."


def answer(findings: Findings) -> Answer | None:
    """Return the verdict on the first pair, and on the first one of each further configuration."""
    shown = {pair.where: pair for pair in reversed(pairs(findings))}
    lines = [_sentence(pair) for pair in reversed(shown.values())]
    basis = [record for pair in shown.values() for side in (pair.first, pair.other) for record in side.records]
    return Answer(lines[0], lines[1:], basis) if lines else None


def page(findings: Findings) -> Section:
    """Return a row for each pair."""
    columns: list[Column[Pair]] = [
        Column("configuration", lambda pair: pair.where),
        Column("compared", _compared),
        Column("medians", _medians),
        Column("quotient", lambda pair: pair.shown, importance="answer"),
        Column("verdict", lambda pair: pair.word.replace("single", "one launch or seed"), importance="answer"),
    ]
    return one_table("Contrast", columns, pairs(findings), left=2)


def _medians(pair: Pair) -> str:
    values = (Scale(side.records).median(MEASURES[pair.measure]) for side in (pair.first, pair.other))
    return " / ".join(map(FORMATS[MEASURES[pair.measure].unit], values))


def charts(findings: Findings) -> list[Intervals]:
    """Return the quotients, with the line of equal sides."""
    shown = [pair for pair in pairs(findings) if not is_difference(MEASURES[pair.measure])]
    compared = [*map(_compared, shown)]
    alike = len({*compared}) == 1
    labels = [("" if alike else f"{sides} ") + pair.where for sides, pair in zip(compared, shown, strict=True)]
    sizes = [(s.value, *((s.low, s.high) if s.low < s.high else (None, None))) for s in (p.size for p in shown)]
    axis = Axis(compared[0] if alike else "first / other")
    note = "Bars are 95 % intervals; 1: both sides are equal."
    return [Intervals("Contrast", labels, sizes, axis, 1.0, note)] if len(shown) > 1 else []


SECTION: Final = Declaration(1, page, answer=answer, figures=(charts,))
