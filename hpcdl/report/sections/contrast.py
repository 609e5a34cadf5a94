"""Contrast: cases that differ in one key, compared by one measure.

A suite states it, ``compare = {aggregation = ["ring", "parameter_server"], measure = "step"}``, or varies one key
only. Cases are compared that are equal but for this key: on equally many ranks, on one problem, with one method.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from hpcdl.analysis.run.launches import Launch, undisturbed
from hpcdl.analysis.run.record import Key, Record
from hpcdl.analysis.statistics.estimates import Interval, difference_interval, ratio_interval
from hpcdl.cases.keys.key import keys, plain
from hpcdl.cases.keys.suite_tables import column_of, role_of
from hpcdl.exit_codes import UsageError
from hpcdl.registry import label, nearest, parts
from hpcdl.report.formats.cells import FORMATS, Number, bounded, digits, plural, volume
from hpcdl.report.formats.document import Axis, Intervals, Section
from hpcdl.report.formats.tables import Column, table
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Scale
from hpcdl.report.run.literature import capital, link_title, title_of
from hpcdl.report.run.method_names import Names
from hpcdl.suite import Suite, head
from hpcdl.trace.files import JsonMapping
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
NOUNS: Final = {"time_p50": "time"}
"""Names of measures in a sentence, where another one than the column."""
VERDICTS: Final = {"single": "one launch or seed"}
"""Cells for words of a verdict."""
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


def _read(table: JsonMapping) -> Compare:
    """Return what ``compare`` of a suite states. Raises ValueError."""
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
    if "compare" not in suite.table:
        return
    where, written = f"{source}: [suite]: compare", suite.table["compare"]
    if not isinstance(written, dict):
        raise UsageError(f"{where}: must be a table, not {written!r}")
    cases = (*suite.cases, *suite.others)
    valid = {name for case in cases for name in keys(type(case.spec))}
    try:
        compare = _read(written)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    if compare.key not in valid:
        raise UsageError(f"{where}: unknown {compare.key!r}{nearest(compare.key, valid)}")
    labels = {label(plain(value)) for case in cases if (value := case.setting(compare.key)) is not None}
    labels |= {parts(text)[0] for text in labels}
    for value in compare.values:
        if value not in labels:
            raise UsageError(f"{where}: {compare.key}: no case has {value!r}{nearest(value, labels)}")


def stated(findings: Findings) -> Compare | None:
    """Return what the suite compares: what it states, else, without an ``answer``, the only key that it varies."""
    suite = head(findings.run.suite)
    if isinstance(suite.get("compare"), dict):
        try:
            return _read(suite["compare"])
        except ValueError:  # a report cannot mend a suite that has run
            return None
    named = {name for record in findings.records for name in record.settings if role_of(name) in VARIED}
    varied = [name for name in named if len({value_of(record, name) for record in findings.records}) > 1]
    return Compare(varied[0], (), "") if len(varied) == 1 and "answer" not in suite else None


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
    def records(self) -> list[Record]:
        """Of both sides."""
        return [*self.first.records, *self.other.records]

    @property
    def word(self) -> str:
        """The verdict."""
        quantity = MEASURES[self.measure]
        exact = (
            quantity.unit == "B" or "integer" in quantity.types or all(record.is_exact for record in self.records)
        )
        equal = 0.0 if is_difference(quantity) else 1.0
        if not (exact or quantity.seeded) and any(record.disturbed for record in self.records):
            return "disturbed"
        if quantity.seeded or not exact:
            sides = [
                undisturbed(side.launches) if quantity in TIMES else side.records
                for side in (self.first, self.other)
            ]
            if min(map(len, sides)) < 2 or not math.isfinite(self.size.low):
                return "single"
            if self.size.low <= equal <= self.size.high:
                return "not distinguished"
        if self.size.value == equal:
            return "equal"
        less = self.size.value < equal
        if not quantity.better:
            return "less" if less else "more"
        return "better" if less == (quantity.better == "lower") else "worse"

    @property
    def inverse(self) -> str:
        """Quotient of the other side and the first, with its interval."""
        value, low, high = (1 / bound if bound else math.inf for bound in self.size)
        return bounded(value, high, low)

    @property
    def shown(self) -> str:
        """Quotient, or difference in percentage points, with its interval."""
        is_share = is_difference(MEASURES[self.measure])
        value, low, high = (100 * bound if is_share else bound for bound in self.size)
        form = _points if is_share else digits
        return bounded(value, low, high, form)


def _points(value: Number) -> str:
    return f"{value:+.1f}"


def is_difference(quantity: Quantity[Any]) -> bool:
    """Return True if a quantity is compared by a difference in percentage points: an accuracy."""
    return quantity.name.endswith("accuracy")


Frames: TypeAlias = dict[Key, dict[str, dict[Key, Side]]]
"""Sides by problem and ranks, by value, and by method."""


def pairs(findings: Findings) -> list[Pair]:
    """Return the sides that are compared; those of training, and those on the most ranks, come first.

    Two values are compared in the suite's order; of more, the best by the measure is compared with each other one.
    """
    compare = stated(findings)
    if compare is None:
        return []
    frames: Frames = {}
    for launch in findings.launches:
        if compare.value(launch.record) and len(launch.seconds):
            _side(frames, compare, launch.record).launches.append(launch)
    for record in findings.records:
        if compare.value(record) and not record.error:
            _side(frames, compare, record).records.append(record)
    found = [pair for values in frames.values() for pair in _paired(compare, values)]
    found.sort(key=lambda pair: (not pair.record.is_training, -pair.record.ranks, pair.record.message_bytes or 0))
    return [
        pair._replace(where=_where(findings, pair, method))
        for _, alike in groupby(found, key=lambda pair: pair.record.is_training)
        for pair, method in _methods(list(alike), compare.key)
    ]


def _methods(found: Sequence[Pair], key: str) -> list[tuple[Pair, str]]:
    """Return each pair with its method; empty if it is that of all."""
    cases = [_without(pair.record, key) for pair in found]
    names = list(map(Names(cases), cases))
    return list(zip(found, names if len({*names}) > 1 else [""] * len(names), strict=True))


def _without(record: Record, key: str) -> Record:
    """Return a case without the value of the key."""
    column = column_of(key)
    return record.but(**{column: None}) if column in QUANTITIES and column != "ranks" else record


def _where(findings: Findings, pair: Pair, method: str) -> str:
    """Return problem, method and ranks of a pair, in words; what both sides' names state is left out."""
    record, sides = pair.record, (pair.first.name, pair.other.name)
    words = findings.settings.name(record).split(", ") if record.is_training else []
    named = ", ".join(word for word in (*words, method) if word and word not in sides)
    size = f" of {volume(record.message_bytes)}" if record.message_bytes else ""
    operation = "step" if record.is_training else f"{record.collective or record.kind}{size}"
    article = "an" if operation.startswith(("a", "e")) else "a"
    return f"for {article} {operation} on {plural(record.ranks, 'rank')}" + (f" ({named})" if named else "")


def _side(frames: Frames, compare: Compare, record: Record) -> Side:
    """Return the side of a case: of its problem, ranks, value and method."""
    problem, *method = _without(record, compare.key).configuration(compare.key)
    ranks = 0 if compare.key == "ranks" else record.ranks
    value = compare.value(record)
    sides = frames.setdefault((problem, ranks), {}).setdefault(value, {})
    return sides.setdefault(tuple(method), Side(value, [], []))


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
    sizes = [_size(first, other, quantity) for other in others]
    return [
        Pair(compare.key, "", first, other, measure, size, len(others))
        for other, size in zip(others, sizes, strict=True)
        if math.isfinite(size.value) and not _is_same_program(compare.key, first.records[0], other.records[0])
    ]


def _is_same_program(key: str, record: Record, other: Record) -> bool:
    """Return True if the key makes no difference on one rank: the network, or the aggregation."""
    return record.ranks == 1 and (key == "network" or (role_of(key) == "method" and record.method == other.method))


def _size(first: Side, other: Side, quantity: Quantity[Any]) -> Interval:
    """Return the quotient of two sides, or the difference of accuracies; each seed is a sample."""
    if quantity in TIMES:
        fair = [undisturbed(side.launches) for side in (first, other)]
        times = [[launch.seconds for launch in side] for side in fair]
        return ratio_interval(*times, middles=(fair[0][0].middle, fair[1][0].middle))
    vectors = [[np.array([value]) for value in Scale(side.records).values(quantity)] for side in (first, other)]
    return (difference_interval if is_difference(quantity) else ratio_interval)(*vectors)


def _verdict(pair: Pair) -> Verdict:
    """Return the verdict on a pair."""
    quantity, names = MEASURES[pair.measure], [_in_words(pair.key, side.name) for side in (pair.first, pair.other)]
    first, other = capital(names[0]), names[1] + (f", the next of {pair.rivals + 1}," if pair.rivals > 1 else "")
    noun = NOUNS.get(pair.measure) or quantity.heading or pair.measure.replace("_", " ")
    if is_difference(quantity):
        size = f"changes the {noun} by {pair.shown} percentage points against {other}"
    elif quantity not in TIMES:
        size = f"{VERBS[quantity.unit]} {pair.shown} times the {noun} of {other}"
    elif pair.word == "better":
        size = f"is {pair.inverse} times as fast as {other}"
    else:
        size = f"takes {pair.shown} times as long as {other}"
    facts = {"sides": f"{first} {size} {pair.where}", **_words(pair)}
    return Verdict(topic="contrast", word=pair.word, size=pair.size, facts=facts)


def _in_words(key: str, value: str) -> str:
    """Return a value of the key as a sentence names it: "a ring", "100 Gbit/s RDMA"."""
    return link_title(value) if key == "network" else title_of(value)


def _words(pair: Pair) -> dict[str, str]:
    """Return the words of a verdict that depend on the measure; a sentence about a time states who is faster."""
    quantity = MEASURES[pair.measure]
    timed = quantity in TIMES
    return {
        "better": "" if timed else ": better",
        "worse": "" if timed else ": worse",
        "single": f"one {'launch' if timed else 'seed'}",
    }


def answer(findings: Findings) -> Answer | None:
    """Return the verdict on the first pair, and on the first one of each further configuration."""
    shown = {pair.where: pair for pair in reversed(pairs(findings))}
    if not shown:
        return None
    headline, *others = (_verdict(pair).sentence for pair in reversed(shown.values()))
    return Answer(headline, others, [record for pair in shown.values() for record in pair.records])


def page(findings: Findings) -> Section:
    """Return a row for each pair."""
    columns: list[Column[Pair]] = [
        Column("configuration", lambda pair: pair.where),
        Column("compared", lambda pair: f"{pair.first.name} / {pair.other.name}"),
        Column(
            "medians", lambda pair: " / ".join(_middle(side, pair.measure) for side in (pair.first, pair.other))
        ),
        Column("quotient", lambda pair: pair.shown, importance="answer"),
        Column("verdict", lambda pair: VERDICTS.get(pair.word, pair.word), importance="answer"),
    ]
    made = [table(columns, shown, left=2)] if (shown := pairs(findings)) else []
    return Section("Contrast", tables=made)


def _middle(side: Side, measure: str) -> str:
    quantity = MEASURES[measure]
    return FORMATS[quantity.unit](Scale(side.records).median(quantity))


def charts(findings: Findings) -> list[Intervals]:
    """Return the quotients, with the line of equal sides."""
    shown = [pair for pair in pairs(findings) if not is_difference(MEASURES[pair.measure])]
    labels = [f"{pair.first.name} / {pair.other.name} {pair.where}" for pair in shown]
    axis = Axis("first / other")
    sizes = [
        (value, *((low, high) if low < high else (None, None))) for value, low, high in (p.size for p in shown)
    ]
    note = "Bars are 95 % intervals; 1: both sides are equal."
    return [Intervals("Contrast", labels, sizes, axis, 1.0, note)] if len(shown) > 1 else []


SECTION: Final = Declaration(1, page, answer=answer, figures=(charts,))
