"""Contrast: cases that differ in one key, compared by one measure.

A suite states it, ``compare = {aggregation = ["ring", "parameter_server"], measure = "step"}``, or varies one key
only. Cases are compared that are equal but for this key: on equally many ranks, on one problem, with one method.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from hpcdl.analysis.run.record import Record, group_by_key, is_difference
from hpcdl.cases.keys.key import keys, plain
from hpcdl.cases.keys.suite_tables import role_of
from hpcdl.exit_codes import UsageError
from hpcdl.registry import label, nearest, parts
from hpcdl.report.formats.cells import FORMATS, bounded, plural, sentence, volume
from hpcdl.report.formats.document import Axis, Intervals, Section
from hpcdl.report.formats.tables import Column
from hpcdl.report.run.declaration import Answer, Declaration, one_table
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import ABSENT
from hpcdl.report.run.names import Names, capital, in_words, link_title, slowed, title_of
from hpcdl.report.run.views import DOUBTS, TIMES, Pair, Side, configurations, judged, value_of, without
from hpcdl.suite import Suite, head
from hpcdl.trace.quantities import CommonNumbers, OperationNumbers, TrainingNumbers
from hpcdl.trace.quantity import Quantity, declared

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
    planned = [Record.of(case.fields()) for case in cases]
    if not configurations(planned, compare.key, compare.value):
        raise UsageError(f"{where}: {_alone(compare)}")


def _alone(compare: Compare) -> str:
    sides = " and ".join(compare.values[:2])
    return f"nothing to compare: no cases with {compare.key} {sides} are equal but for this key"


def stated(findings: Findings) -> Compare | None:
    """Return what the suite compares: what it states, else, without an ``answer``, the only key that it varies."""
    suite = head(findings.run.suite)
    with suppress(TypeError, ValueError):  # a report cannot mend a suite that has run
        if "compare" in suite:
            return _read(suite["compare"])
    named = {name for record in findings.records for name in record.settings if role_of(name) in VARIED}
    varied = [name for name in named if len({value_of(record, name) for record in findings.records}) > 1]
    return Compare(varied[0], (), "") if len(varied) == 1 and not {"answer", "compare"} & {*suite} else None


def pairs(findings: Findings) -> list[Pair]:
    """Return the sides that are compared; those of training, and those on the most ranks, come first.

    Two values are compared in the suite's order; of more, the best by the measure is compared with each other one.
    """
    return findings.once(_pairs)


def _pairs(findings: Findings) -> list[Pair]:
    compare = stated(findings)
    if compare is None:
        return []
    families = list[list[Side]]()
    for sides in configurations(findings.records, compare.key, compare.value):
        family = [sides[value] for value in compare.values if value in sides] or [*sides.values()]
        quantity = _quantity(compare, family[0].record)
        if len(family) > 2:
            sign = -1 if quantity.better == "higher" else 1
            family.sort(key=lambda side: math.inf if (middle := side.median(quantity)) is None else sign * middle)
        if family[0].record.ranks == 1:  # the network makes no difference, nor does the aggregation
            first, *others = family
            is_method, is_network = role_of(compare.key) == "method", compare.key == "network"
            apart = [
                o for o in others if not (is_network or (is_method and first.record.method == o.record.method))
            ]
            family = [first, *apart]
        families.append(family)
    by_measure = group_by_key(
        (_quantity(compare, family[0].record), family) for family in families if len(family) > 1
    )
    made = [judged(some, quantity, chosen=True) for quantity, some in by_measure.items()]
    every = [pair for some in made for family in some for pair in family]
    every.sort(key=lambda pair: (not pair.record.is_training, -pair.record.ranks, pair.record.message_bytes or 0))
    shown = list[Pair]()
    for alike in group_by_key((pair.record.is_training, pair) for pair in every).values():
        cases = [without(pair.record, compare.key) for pair in alike]
        names = [*map(Names(cases), cases)]
        methods = names if len({*names}) > 1 else [""] * len(names)  # that of all is left out
        places = [_where(findings, compare.key, *each) for each in zip(alike, methods, strict=True)]
        shown += [pair._replace(where=place) for pair, place in zip(alike, places, strict=True)]
    return shown


def _quantity(compare: Compare, record: Record) -> Quantity[Any]:
    return MEASURES[compare.measure or ("step" if record.is_training else "time_p50")]


def _where(findings: Findings, key: str, pair: Pair, method: str) -> str:
    """Return problem, method and ranks of a pair, in words; what both sides' names state is left out."""
    record = pair.record
    slow = record.straggler if key == "straggler" else None
    stated = (pair.first.name, pair.other.name, ABSENT.get(key), slow)
    problem = findings.settings.name(record).split(", ") if record.is_training else []
    words = [word for word in problem if word and word not in stated]
    words += [title_of(name) for name in method.split(", ") if name and name not in stated]
    named = ", ".join(words)
    size = f" of {volume(record.message_bytes)}" if record.message_bytes else ""
    operation = "step" if record.is_training else f"{record.collective or record.kind}{size}"
    article = "an" if operation.startswith(("a", "e")) else "a"
    ranks = "" if key == "ranks" else f" on {plural(record.ranks, 'rank')}"
    return f"for {article} {operation}{ranks}" + (f" ({named})" if named else "")


def _named(key: str, side: Side, pair: Pair) -> str:
    """Return a side in words, to begin a sentence."""
    if key == "training":
        return in_words(Names(pair.records)(side.record), side.record)
    if key == "ranks":
        return f"a job of {plural(int(side.name), 'rank')}"
    if key == "straggler":
        return f"training with {slow}" if (slow := _slow(side)) else "training without a slow rank"
    return link_title(side.name) if key == "network" else title_of(side.name)


def _compared(key: str, pair: Pair) -> str:
    """Return both sides, as briefly as a table has them."""
    sides = pair.first, pair.other
    return " / ".join((_slow(side) or "no slow rank") if key == "straggler" else side.name for side in sides)


def _slow(side: Side) -> str:
    return slowed(side.record.straggler or "")


def _sentence(key: str, pair: Pair) -> str:
    quantity, reason = pair.quantity(), pair.judged.reason
    first, other = (_named(key, side, pair) for side in (pair.first, pair.other))
    other += f", the next of {pair.rivals + 1}," if pair.rivals > 1 else ""
    noun = quantity.heading or quantity.name.removesuffix("_seconds").replace("_", " ")
    if is_difference(quantity):
        text = f"changes the {noun} by {pair.shown} percentage points against {other}"
    elif quantity not in TIMES:
        text = f"{VERBS[quantity.unit]} {pair.shown} times the {noun} of {other}"
    elif pair.word == "better":
        text = f"is {bounded(*pair.judged.swapped.size)} times as fast as {other}"
    else:
        text = f"takes {pair.shown} times as long as {other}"
    ending = DOUBTS.get(reason) or pair.word
    told = quantity in TIMES and pair.word in {"better", "worse"}  # the sentence states who is faster
    return f"{capital(first)} {text} {pair.where}{'' if told else f': {ending}'}."


def answer(findings: Findings) -> Answer | None:
    """Return the verdict on the first pair, and on the first one of each further configuration."""
    compare, shown = stated(findings), {pair.where: pair for pair in reversed(pairs(findings))}
    if compare is None or not shown:
        return Answer(sentence(_missing(findings, compare))) if compare and compare.values else None
    headline, *lines = [_sentence(compare.key, pair) for pair in reversed(shown.values())]
    return Answer(headline, lines, [record for pair in shown.values() for record in pair.records])


def _missing(findings: Findings, compare: Compare) -> str:
    """Return why nothing is compared."""
    measured = {
        compare.value(record) for record in findings.records if _quantity(compare, record).of(record) is not None
    }
    lacking = [value for value in compare.values if value not in measured]
    if lacking and {*map(compare.value, findings.records)} >= {*lacking}:
        side = f"no case with {compare.key} {lacking[0]}"
        return f"nothing is compared: {side} has a measured {compare.measure or 'time'}"
    return _alone(compare)


def page(findings: Findings) -> Section:
    """Return a row for each pair."""
    compare = stated(findings)
    columns: list[Column[Pair]] = [
        Column("configuration", lambda pair: pair.where),
        Column("compared", lambda pair: _compared(compare.key if compare else "", pair)),
        Column("medians", _medians),
        Column("quotient", lambda pair: pair.shown, importance="answer"),
        Column("verdict", lambda pair: pair.word, importance="answer"),
    ]
    return one_table("Contrast", columns, pairs(findings), left=2)


def _medians(pair: Pair) -> str:
    values = (side.median(pair.quantity()) for side in (pair.first, pair.other))
    return " / ".join(map(FORMATS[pair.quantity().unit], values))


def charts(findings: Findings) -> list[Intervals]:
    """Return the quotients, with the line of equal sides."""
    compare, shown = stated(findings), [pair for pair in pairs(findings) if not is_difference(pair.quantity())]
    if compare is None or len(shown) < 2:
        return []
    compared = [_compared(compare.key, pair) for pair in shown]
    alike = len({*compared}) == 1
    labels = [("" if alike else f"{sides} ") + pair.where for sides, pair in zip(compared, shown, strict=True)]
    axis = Axis(compared[0] if alike else "first / other")
    note = "Bars are 95 % intervals; 1: both sides are equal."
    return [Intervals("Contrast", labels, [pair.judged.size for pair in shown], axis, 1.0, note)]


SECTION: Final = Declaration(1, page, answer=answer, figures=(charts,))
