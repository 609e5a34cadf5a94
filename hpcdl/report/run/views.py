"""Views: cases that differ in one key only, judged by one rule, with sentences of one table.

A view finds configurations: cases of one problem on equally many ranks, with one method, that differ in a key. It
judges one side of each against the others (:mod:`hpcdl.analysis.statistics.judging`), and writes the verdicts in
words. A suite writes a view as ``compare`` (:mod:`hpcdl.report.sections.contrast`); sections write others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from hpcdl.analysis.run.record import Key, Record, group_by_key, is_difference, judge_methods
from hpcdl.analysis.statistics.estimates import Interval
from hpcdl.analysis.statistics.judging import Judged
from hpcdl.cases.keys.suite_tables import column_of
from hpcdl.registry import label
from hpcdl.report.formats.cells import CHANCE, bounded, digits, listed, percent, sentence
from hpcdl.report.run.declaration import Answer
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Scale
from hpcdl.trace.quantities import QUANTITIES
from hpcdl.trace.quantity import Quantity

Measure = Quantity[Any]
TIMES: Final[tuple[Measure, ...]] = (Record.step_seconds, Record.time_p50_seconds)
DOUBTS: Final = {
    "chance": CHANCE,
    "disturbed": "not decided, as other load disturbed it",
    "one launch": "not decided, as one launch decides nothing",
    "one seed": "not decided, as one seed decides nothing",
    "unknown": "not decided, as it has no interval",
}
"""End of a sentence by the reason for which nothing is decided."""


class Side(NamedTuple):
    """Cases with one value of the key."""

    name: str
    records: list[Record]
    """One per seed."""

    @property
    def record(self) -> Record:
        """Of the first seed."""
        return self.records[0]

    def median(self, quantity: Measure) -> float | None:
        """Return the median over seeds; None if it is unknown."""
        return Scale(self.records).median(quantity)


class Pair(NamedTuple):
    """Two sides of one configuration."""

    first: Side
    other: Side
    measure: str
    """Name of the quantity."""
    judged: Judged
    """The first against the other."""
    rivals: int = 1
    """Sides that the first was judged against."""
    where: str = ""
    """Operation, ranks, problem and method, in words."""

    def quantity(self) -> Measure:
        """Return the measured quantity."""
        return QUANTITIES[self.measure]

    @property
    def record(self) -> Record:
        """Of the first side's first seed."""
        return self.first.record

    @property
    def records(self) -> list[Record]:
        """Those of both sides."""
        return [*self.first.records, *self.other.records]

    @property
    def word(self) -> str:
        """The verdict on the first: better, worse, less, more or equal; else the reason why nothing is decided."""
        word, better = self.judged.word, self.quantity().better
        if word in {"less", "more"} and better:
            return "better" if (word == "less") == (better == "lower") else "worse"
        return {"chance": "not distinguished"}.get(self.judged.reason, self.judged.reason) or word

    @property
    def swapped(self) -> Pair:
        """The other against the first, by a quotient."""
        return Pair(self.other, self.first, self.measure, self.judged.swapped)

    @property
    def shown(self) -> str:
        """Quotient, or difference in percentage points, with its interval."""
        points = is_difference(self.quantity())
        value, low, high = (100 * bound if points else bound for bound in self.judged.size)
        return bounded(value, low, high, "{:+.1f}".format if points else digits)


def value_of(record: Record, key: str) -> str:
    """Return the value of a key in a case, as a suite writes it."""
    return label(record.settings[key]) if key in record.settings else str(record.stated(column_of(key)) or "none")


Configuration = dict[str, Side]
"""Sides by the value of the key."""


def configurations(records: Iterable[Record], key: str, value: Callable[[Record], str]) -> list[Configuration]:
    """Return the sides that differ in a key only; a record without a ``value`` of it is left out.

    Their methods are equal without the key. Values with one method each are compared although these differ: a
    strategy may need another learning rate.
    """
    frames: dict[Key, dict[str, dict[Key, Side]]] = {}
    for record in records:
        if (name := value(record)) and not record.error:
            problem, *method = without(record, key).configuration(key)
            values = frames.setdefault((problem, 0 if key == "ranks" else record.ranks), {})
            values.setdefault(name, {}).setdefault(tuple(method), Side(name, [])).records.append(record)
    made = list[Configuration]()
    for values in frames.values():
        if all(len(sides) == 1 for sides in values.values()):
            made.append({name: side for name, sides in values.items() for side in sides.values()})
        else:
            methods = dict.fromkeys(method for sides in values.values() for method in sides)
            made += [
                {name: sides[method] for name, sides in values.items() if method in sides} for method in methods
            ]
    return [sides for sides in made if len(sides) > 1]


def without(record: Record, key: str) -> Record:
    """Return a case without the value of a key."""
    column = column_of(key)
    return record.but(**{column: None}) if column in QUANTITIES and column != "ranks" else record


def judged(families: Sequence[Sequence[Side]], quantity: Measure, *, chosen: bool = False) -> list[list[Pair]]:
    """Judge the first side of each family against its others; without those whose numbers are unknown.

    ``chosen``: the first is the best of its family.
    """
    verdicts = judge_methods([[side.records for side in family] for family in families], quantity, chosen=chosen)
    every = [
        [
            Pair(first, other, quantity.name, verdict, len(others))
            for other, verdict in zip(others, some, strict=True)
        ]
        for (first, *others), some in zip(families, verdicts, strict=True)
    ]
    return [
        [pair for pair in some if math.isfinite(pair.judged.size.value) or pair.judged.votes] for some in every
    ]


class Way(NamedTuple):
    """Sentence about a quotient: subject, verb, size, object."""

    verb: str
    size: Callable[[Interval], str]
    rest: str
    """Object, with ``{other}``."""
    opposite: str = ""
    """Way for a quotient above 1."""
    inverse: bool = False
    """True if the size is that of the other / the first."""
    tells: bool = False
    """True if an interval that holds 1 is an answer, too."""


def _times(size: Interval) -> str:
    return f"{bounded(*size)} times"


def _less(size: Interval) -> str:
    return bounded(1 - size.value, 1 - size.high, 1 - size.low, percent)


def _share(size: Interval) -> str:
    text = bounded(*size, lambda share: f"{100 * (share or 0):.0f} %")
    return text if size.value < WHOLE else text.replace(text.partition(" (")[0], "all", 1)


WHOLE: Final = 0.995
"""Least share of a throughput that is all of it."""
WAYS: Final = {
    "fast": Way("is", _times, "as fast as {other}", "long", inverse=True),
    "long": Way("takes", _times, "as long as {other}"),
    "keeps": Way("keeps", _share, "of its throughput", tells=True),
    "saves": Way("makes a step", _less, "shorter than with {other}", "adds"),
    "adds": Way(
        "makes a step",
        lambda size: bounded(size.value - 1, size.low - 1, size.high - 1, percent),
        "longer than with {other}",
    ),
    "overlaps": Way("overlaps", _less, "of the communication with computing"),
    "sends": Way("sends", _times, "as many bytes as {other}", tells=True),
    "needs": Way("needs", lambda size: f"{100 * size.value:.0f} %", "of the memory of {other}", tells=True),
}
"""Sentences about the quotient of two sides."""
Told = tuple[str, Pair]
"""Name of the first side, and its verdict against the other one."""


def say(told: Sequence[Told], way: str, other: str, where: str = "", when: str = "") -> list[str]:
    """Return sentences on sides that were judged against one other, those that differ most first.

    Sides with one verdict share a sentence; undecided ones come last, with the reason.
    """
    lines = list[str]()
    groups = group_by_key(((_way(pair, way), _reason(pair, way)), (name, pair)) for name, pair in told)
    for (chosen, reason), some in sorted(groups.items(), key=lambda group: group[0][1] != ""):
        ordered = sorted(some, key=lambda one: -abs(math.log(one[1].judged.size.value or 1)))
        phrases = [f"{name} {_phrase(pair, chosen)}" for name, pair in ordered[:1]]
        phrases += [f"{name} {_size(pair, chosen).partition(' (')[0]}" for name, pair in ordered[1:]]
        words = when, listed(phrases), WAYS[chosen].rest.format(other=other), where
        lines.append(sentence(" ".join(filter(None, words)) + (f": {DOUBTS[reason]}" if reason else "")))
    return lines


def _way(pair: Pair, way: str) -> str:
    return WAYS[way].opposite or way if pair.judged.size.value > 1 else way


def _reason(pair: Pair, way: str) -> str:
    return "" if WAYS[way].tells and pair.judged.reason == "chance" else pair.judged.reason


def _phrase(pair: Pair, way: str) -> str:
    return f"{WAYS[way].verb} {_size(pair, way)}"


def _size(pair: Pair, way: str) -> str:
    return WAYS[way].size((pair.judged.swapped if WAYS[way].inverse else pair.judged).size)


def _answer(lines: Sequence[str], basis: Iterable[Record]) -> Answer | None:
    return Answer(lines[0], lines[1:], [*{id(record): record for record in basis}.values()]) if lines else None


@dataclass(frozen=True)
class View:
    """Cases that differ in one key: which of them, against which side, by which measures, in which words."""

    key: str
    of: Callable[[Findings], Sequence[Record]]
    tell: Sequence[tuple[Measure, str]]
    """Measures, and the sentence on each: a key of :data:`WAYS`."""
    against: Callable[[Side, Sequence[Side]], bool]
    """True for the side against which the others are judged; configurations without one are left out."""
    subject: Callable[[Findings, Side, Sequence[Side]], str]
    """Name of a side in a sentence, among all of its configuration."""
    where: Callable[[Findings, Side], str]
    when: Callable[[Side], str] = lambda _: ""
    """Beginning of a sentence."""
    value: Callable[[Record], str] | None = None
    """Value of the key; None: as the suite writes it."""

    def judged(self, findings: Findings, measure: Measure) -> list[list[Pair]]:
        """Return the sides of each configuration against that one."""
        families = list[list[Side]]()
        value = self.value or partial(value_of, key=self.key)
        for named in configurations(self.of(findings), self.key, value):
            sides = [*named.values()]
            first = next((side for side in sides if self.against(side, sides)), None)
            families += [[first, *(side for side in sides if side is not first)]] if first else []
        return [[pair.swapped for pair in some] for some in judged(families, measure) if some]

    def answer(self, findings: Findings) -> Answer | None:
        """Return a sentence for each measure, place and verdict."""
        lines, basis = list[str](), list[Record]()
        for measure, way in self.tell:
            named = "{other}" in WAYS[way].rest
            groups = (
                (when, other * named, where, name, pair)
                for when, other, where, name, pair in self._told(findings, measure)
            )
            for (when, other, where), some in group_by_key((each[:3], each[3:]) for each in groups).items():
                lines += say(some, way, other, where, when)
                basis += [record for _, pair in some for record in pair.records]
        return _answer(lines, basis)

    def _told(self, findings: Findings, measure: Measure) -> list[tuple[str, str, str, str, Pair]]:
        """Return each pair with the beginning of its sentence, the other's name, its place and its own name."""
        told = []
        for pairs in self.judged(findings, measure):
            sides = [pairs[0].other, *(pair.first for pair in pairs)]
            other, *names = (self.subject(findings, side, sides) for side in sides)
            for name, pair in zip(names, pairs, strict=True):
                told.append((self.when(pair.first), other, self.where(findings, pair.first), name, pair))
        return told
