"""Claims of the sources, decided by runs; ``hpcdl/papers/registry.md`` fixes them, and the rules of this module.

``hpcdl/papers/claims`` has a file for each source: ``title``, ``source``, and a ``[[claim]]`` for each row of the
registry with ``id``, ``text`` (what the source says), ``place`` in it and its parts, which have a verdict each.
Keys that a part lacks are its claim's; keys that a clause, a number of the part, lacks are the part's:

``report``, ``kind``, ``n``, ``because``
    page that shows it; one of :class:`Kind`; seeds or launches after each look; whose limit, if it is not the
    sentence itself;
``text``
    measurement as a sentence, with ``{}`` in the place of the number;
``run``, ``field``, ``case``
    the number: a field of the records of that run, by default the report's, whose columns have these texts
    ("None": without a value), or match the regular expression behind ``~``; of several cases, ``chosen`` by
    validation, that with the most accurate trial; run ``pico`` has the times that others measured;
``by``, ``minus``, ``by_run``, ``minus_run``
    columns in which other records differ, of another run if need be, by whose number it is divided, or whose
    number is subtracted;
``contrast``
    instead of these weights and columns of several sides, whose weighted sum is the number;
``scale``, ``share``
    factor on the number; true: it is the share of units with a quotient below 1;
``above``, ``below``, ``least``, ``most``
    limits; the last two are inclusive;
``reversed``
    of a part: true if it is confirmed where a number is beyond its limits, and refuted where all are within.

A part without numbers has no run.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from typing import Final, TypeAlias

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.estimates import NOTHING, Interval, proportion_interval
from hpcdl.analysis.statistics.judging import Side, compare, outvote
from hpcdl.report.formats.cells import NONE, Number, digits, interval, percent
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.published_results import number
from hpcdl.suite import PAPERS
from hpcdl.trace.files import JsonMapping, JsonObject
from hpcdl.trace.quantities import COLUMNS

SOURCES: Final = ("firecaffe", "distbelief", "lecture", "essay", "other")
"""Files, in the order of the page."""
BY_OTHERS: Final = "pico"
"""In the place of a run: what others measured on real clusters (:mod:`hpcdl.analysis.network.clusters`)."""
YES, NO, OPEN, ABSENT = "confirmed", "refuted", "open", "no run"
WORST_FIRST: Final = (NO, OPEN, ABSENT, YES)
"""Verdicts; one without a run is open."""
AT_LEAST, AT_MOST = "\N{GREATER-THAN OR EQUAL TO}", "\N{LESS-THAN OR EQUAL TO}"
CHANCE, DIVERGED_BELOW = 0.1, 0.15
"""Accuracy of trainings that diverged, and the final accuracy below which they have."""
MOST: Final = 4
"""Numbers of a part that its sentence has, at most."""
SHARES: Final = {"diverged", *(name for name, quantity in COLUMNS.items() if "boolean" in quantity.types)}
"""Fields that are true or false of each seed: their number is a share of seeds, with exact bounds."""
RATIOS: Final = ("compression_ratio", "efficiency", "speedup")
"""Fields that are ratios, of which logarithms are compared."""


Unit: TypeAlias = int | str
"""Seed, launch or job."""


class Kind(StrEnum):
    """By what a part is decided."""

    COMPUTED = "computed"
    """Measured on ranks that compute with a core each."""
    MESSAGES = "messages"
    """Measured: real messages of ranks that may sleep in place of computing."""
    TRAINED = "trained"
    """Trained in virtual time: accuracies, epochs and bytes, never seconds."""
    OTHERS = "others"
    """Measured by others; the unit is a job."""

    @property
    def looks(self) -> tuple[int, ...]:
        """Seeds or launches after each look, unless the registry has others."""
        return {Kind.TRAINED: (5, 10), Kind.OTHERS: ()}.get(self, (5,))

    @property
    def error(self) -> float:
        """Probability of numbers beyond the interval of a look."""
        return 0.025 if self is Kind.TRAINED else 0.05

    @property
    def unit(self) -> str:
        """What a number is known by."""
        return {Kind.TRAINED: "seeds", Kind.OTHERS: "jobs"}.get(self, "launches")

    def has(self, record: Record) -> bool:
        """Return True for a record that may decide it."""
        if self is Kind.OTHERS or record.suite == BY_OTHERS:
            return self is Kind.OTHERS and record.suite == BY_OTHERS
        is_trained = record.kind == "train"
        return bool(record.network) == (self is Kind.TRAINED) and (is_trained or self is Kind.MESSAGES)

    def units(self, record: Record) -> list[tuple[Unit, Record]]:
        """Return a record for each seed, launch or job; a disturbed launch counts too, as the registry has it."""
        if self in {Kind.TRAINED, Kind.OTHERS}:
            return [(str(record.settings["job"]) if self is Kind.OTHERS else record.seed or 0, record)]
        return [(launch or 1, one) for launch, one in (record.samples or {1: record}).items()]


@dataclass(frozen=True, kw_only=True)
class Clause:
    """A number of a part, and its limits."""

    text: str = ""
    run: str
    """Folder of the run."""
    field: str
    case: JsonMapping | Sequence[JsonMapping]
    by: JsonMapping | None = None
    minus: JsonMapping | None = None
    by_run: str = ""
    minus_run: str = ""
    contrast: Sequence[tuple[float, JsonMapping]] = ()
    chosen: str = ""
    scale: float = 1.0
    share: bool = False
    above: float | None = None
    below: float | None = None
    least: float | None = None
    most: float | None = None

    @property
    def runs(self) -> dict[str, None]:
        """The runs whose records it needs."""
        return dict.fromkeys([self.run, *filter(None, (self.by_run, self.minus_run))])

    @property
    def is_share(self) -> bool:
        """True if the number is a share of seeds or jobs."""
        return self.share or self.field in SHARES

    @property
    def is_quotient(self) -> bool:
        """True if logarithms are compared."""
        return self.by is not None or (not (self.minus or self.contrast) and self.field in RATIOS)

    @property
    def unit(self) -> str:
        """Unit of the number as people read it; a quotient is a share where the sentence has it "of" something."""
        if self.field.startswith("accuracy") or self.field.endswith("accuracy"):
            return "points" if self.minus or self.contrast or self.field == "accuracy_gap" else "%"
        if self.is_share:
            return "points" if self.minus else "%"
        if self.by and "{} of " in self.text:
            return "%"
        return "times" if self.by or self.field in RATIOS else "s" if self.field.endswith("seconds") else ""

    def shown(self, value: Number) -> str:
        """Return a number with its unit."""
        if value is not None and self.unit == "points":
            return f"{100 * value:+.1f} points"
        return percent(value) if self.unit == "%" else f"{digits(value)} {self.unit}".rstrip()

    @property
    def limit(self) -> str:
        """The limits, of accuracies in points."""
        scale = 100 if self.unit == "points" else 1
        signs = {">": self.above, "<": self.below, AT_LEAST: self.least, AT_MOST: self.most}
        known = {sign: f"{scale * limit:.4g}" for sign, limit in signs.items() if limit is not None}
        if len(known) == 2:
            return " to ".join(known.values())
        return " ".join(f"{sign} {limit}" for sign, limit in known.items())

    @property
    def refuted(self) -> str:
        """What refutes it, and what leaves it open."""
        turned = str.maketrans(f">{AT_LEAST}<{AT_MOST}", f"{AT_MOST}<{AT_LEAST}>")
        words = f"outside {self.limit}" if " to " in self.limit else self.limit.translate(turned)
        return f"all {words}; open: contains {re.sub('^[^-0-9]*', '', self.limit).replace(' to ', ' or ')}"

    def keeps(self, low: float, high: float) -> bool:
        """Return True if all numbers from ``low`` to ``high`` are within the limits."""
        low, high = round(low, 9), round(high, 9)
        kept = self.above is None or low > self.above, self.below is None or high < self.below
        return all(kept) and (self.least is None or low >= self.least) and (self.most is None or high <= self.most)

    def excludes(self, low: float, high: float) -> bool:
        """Return True if all numbers from ``low`` to ``high`` are beyond one of the limits."""
        low, high = round(low, 9), round(high, 9)
        beyond = (
            self.above is not None and high <= self.above,
            self.below is not None and low >= self.below,
            self.least is not None and high < self.least,
            self.most is not None and low > self.most,
        )
        return any(beyond)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a claim, which has a verdict."""

    id: str
    report: str
    kind: Kind
    n: Sequence[int]
    because: str = ""
    reversed: bool = False
    clauses: Sequence[Clause] = ()

    @property
    def runs(self) -> dict[str, None]:
        """The runs whose records it needs."""
        return {run: None for clause in self.clauses for run in clause.runs}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of a source."""

    id: str
    text: str
    place: str
    source: str = ""
    """Title of the source."""
    parts: Sequence[Part] = ()


@dataclass(frozen=True)
class Source:
    """A source and its claims."""

    title: str
    source: str
    claims: Sequence[Claim]


@dataclass(frozen=True)
class Found:
    """The number of a clause here."""

    clause: Clause
    value: Interval = NOTHING
    """Value and bounds; not a number without records."""
    wide: Interval = NOTHING
    """With the bounds at the error by the number of clauses, of which one refutes."""
    votes: tuple[int, int] = (0, 0)
    """If a training diverged, or a ratio is 0 and has no logarithm: units that keep the limits, of all."""
    clauses: int = 1
    """Numbers of the part."""
    used: int = 0
    """Seeds, launches or jobs."""
    doubt: str = ""
    """Reason for which the number decides nothing."""

    @property
    def verdict(self) -> str:
        """One of :data:`WORST_FIRST`."""
        if not self.used and not self.doubt:
            return ABSENT
        if self.doubt:
            return OPEN
        kept, every = self.votes
        if every:
            words = {YES: outvote(kept, every), NO: outvote(every - kept, every, self.clauses)}
        else:
            words = {YES: self.clause.keeps(*self.value[1:]), NO: self.clause.excludes(*self.wide[1:])}
        return next((word for word, holds in words.items() if holds), OPEN)

    @property
    def number(self) -> str:
        """Number and bounds, or votes, as text."""
        (value, low, high), shown = self.value, self.clause.shown
        if not self.used:
            return NONE
        kept, every = self.votes
        text = "infinitely many times" if math.isinf(value) else shown(value)
        bounds = interval(low, high, shown).removesuffix(f" {self.clause.unit}")
        bounds = f"{kept} of {every} keep the limit" if every else bounds
        return text if bounds == NONE or low == high else f"{text} ({bounds})"

    @property
    def sentence(self) -> str:
        """Measurement in words, with the number and its interval."""
        shown = self.number.replace("points", "percentage points")
        text = self.clause.text
        return text.format(shown) if "{}" in text else f"{text}: {shown}".removeprefix(": ")


@dataclass(frozen=True)
class Decision:
    """A part of a claim with its numbers."""

    claim: Claim
    part: Part
    found: Sequence[Found]

    @property
    def word(self) -> str:
        """Verdict on the part: one number refutes it, all confirm it."""
        words = {found.verdict for found in self.found} or {ABSENT}
        word = NO if NO in words else words.pop() if len(words) == 1 else OPEN
        return {YES: NO, NO: YES}.get(word, word) if self.part.reversed else word

    @property
    def deciding(self) -> Found | None:
        """The number with the worst verdict; None without clauses."""
        return min(self.found, key=lambda found: WORST_FIRST.index(found.verdict), default=None)

    @property
    def doubt(self) -> str:
        """Reasons for which it is open."""
        return "; ".join(dict.fromkeys(found.doubt for found in self.found if found.doubt))

    @property
    def used(self) -> str:
        """Seeds, launches or jobs of those that were planned."""
        used, planned = min((found.used for found in self.found), default=0), max(self.part.n, default=0)
        return f"{used} of {planned}" if planned else f"{used} {self.part.kind.unit}"

    @property
    def finding(self) -> str:
        """The numbers in words; of more than :data:`MOST` the lowest and the highest."""
        used = sorted((one for one in self.found if one.used), key=lambda one: one.value.value)
        if len(used) > MOST:
            ends = used[0].sentence, len(used), used[-1].sentence
            return "{} (the lowest of {} numbers); {} (the highest)".format(*ends)
        return "; ".join(one.sentence for one in self.found if one.used) or NONE

    @property
    def verdict(self) -> Verdict:
        """Verdict on the part."""
        found = self.deciding
        return Verdict(
            topic="claims",
            word=self.word,
            question=self.claim.text,
            case=f"{self.claim.source} claims ({self.part.id}): {self.claim.text}",
            size=found.value if found else NOTHING,
            remedy=f"Reason: {self.doubt}." if self.doubt and self.word == OPEN else "",
            facts={"finding": self.finding},
        )


def sources(names: Sequence[str] = SOURCES) -> list[Source]:
    """Return sources of the package with their claims."""
    made = []
    for name in names:
        data = tomllib.loads((PAPERS / "claims" / f"{name}.toml").read_text(encoding="utf-8"))
        made.append(Source(data["title"], data["source"], [_claim(table, data) for table in data["claim"]]))
    return made


def _claim(table: JsonObject, source: JsonObject) -> Claim:
    """Return a claim of a file."""
    own = {key: table.pop(key) for key in ("id", "text", "place")}
    parts = table.pop("part")
    return Claim(**own, source=source["title"], parts=[_part(_together(table, part)) for part in parts])


def _part(keys: JsonObject) -> Part:
    """Return a part with the keys of its claim."""
    clauses = keys.pop("clause", [{}] if "field" in keys else [])
    own = {each.name: keys.pop(each.name) for each in fields(Part) if each.name in keys}
    kind = Kind(own.pop("kind"))
    keys = {"run": own["report"], "case": {}, **keys}
    made = [_clause(_together(keys, clause)) for clause in clauses]
    return Part(**{"n": kind.looks, **own}, kind=kind, clauses=made)


def _together(outer: JsonObject, own: JsonObject) -> JsonObject:
    """Return the keys of a part or clause with those that it lacks; its columns are added to those outside."""
    pairs = ((key, outer.get(key), own.get(key)) for key in ("case", "by", "minus"))
    both = {key: {**first, **other} for key, first, other in pairs if first and isinstance(other, dict)}
    return {**outer, **own, **both}


def _clause(keys: JsonObject) -> Clause:
    """Return a clause with complete cases."""
    case = keys["case"]
    if isinstance(case, dict):
        keys |= {key: {**case, **keys[key]} for key in ("by", "minus") if key in keys}
        keys["contrast"] = [(weight, {**case, **side}) for weight, side in keys.get("contrast", ())]
    return Clause(**keys)


def decide(claim: Claim, part: Part, records: Mapping[str, Sequence[Record]]) -> Decision:
    """Return the decision by the records of each run.

    The first look that decides counts, and a later one only with all of its seeds.
    """
    decision = Decision(claim, part, [])
    for n in part.n or (None,):
        look = Decision(claim, part, [_found(clause, part, records, n) for clause in part.clauses])
        if decision.found and any(found.doubt or not found.used for found in look.found):
            break
        decision = look
        if decision.word in {YES, NO}:
            break
    return decision


@dataclass(frozen=True)
class _Side:
    """Numbers of a side."""

    numbers: Mapping[Unit, float | None]
    """None: the case failed, or does not have the number."""
    lost: bool
    """True if a training diverged, or missed its target."""
    doubt: str


def _side(clause: Clause, kind: Kind, records: Iterable[Record], case: JsonMapping) -> _Side:
    """Return the numbers of the records that match a case."""
    same = matching(records, case)
    usable = [record for record in same if kind.has(record)]
    pairs = [pair for record in usable for pair in kind.units(record)]
    found = {unit: _value(clause.field, kind, record) for unit, record in pairs}
    measured = kind in {Kind.COMPUTED, Kind.MESSAGES}
    doubts = {
        "records of another kind": bool(same) and not usable,
        "several cases match": len(found) < len(pairs),
        "ranks share cores": measured and any(record.oversubscribed for record in usable),
        f"some {kind.unit} without a number": any(value is None for value, _ in found.values()),
    }
    numbers = {unit: value for unit, (value, _) in found.items()}
    return _Side(numbers, any(lost for _, lost in found.values()), next(filter(doubts.get, doubts), ""))


def matching(records: Iterable[Record], case: JsonMapping) -> list[Record]:
    """Return the records whose columns have the texts of a case, or match the expression behind ``~``."""
    texts = {key: str(text) for key, text in case.items()}
    patterns = {key: text[1:] if text.startswith("~") else re.escape(text) for key, text in texts.items()}
    return [
        record
        for record in records
        if all(re.fullmatch(pattern, str(record.stated(key))) for key, pattern in patterns.items())
    ]


def _value(field: str, kind: Kind, record: Record) -> tuple[float | None, bool]:
    """Return the number of a record, and whether its training diverged or missed its target."""
    value = None if record.error else number(record, field)
    diverged = record.diverged_step is not None or FloatingPointError.__name__ in (record.error or "")
    diverged |= record.final_accuracy is not None and not record.final_accuracy >= DIVERGED_BELOW
    if kind is Kind.TRAINED and diverged:
        worst = {"final_accuracy": CHANCE, "diverged": 1.0}.get(field, value)
        worst = math.inf if field.endswith("_to_target") else worst
        return (math.nan if worst is None else worst), True
    return value, value is not None and math.isinf(value)


def _found(clause: Clause, part: Part, records: Mapping[str, Sequence[Record]], n: int | None) -> Found:
    """Return the number of a clause, of the first ``n`` seeds or launches."""
    kind, own = part.kind, records.get(clause.run, ())
    cases = [clause.case] if isinstance(clause.case, Mapping) else clause.case
    weighted = clause.contrast or [(1.0, max(cases, key=partial(_validated, own)))]
    sides = [(weight, _side(clause, kind, own, case)) for weight, case in weighted]
    if (case := clause.by or clause.minus) is not None:
        others = records.get(clause.by_run or clause.minus_run or clause.run, ())
        sides.append((-1.0, _side(clause, kind, others, case)))
    doubt = next((side.doubt for _, side in sides if side.doubt), "")
    if not all(side.numbers for _, side in sides):
        return Found(clause, doubt=doubt)
    units = sorted({unit for _, side in sides for unit in side.numbers}, key=lambda unit: f"{unit:>9}")[:n]
    units = [unit for unit in units if all(side.numbers.get(unit) is not None for _, side in sides)]
    if n is not None and len(units) < n:
        doubt = doubt or f"{len(units)} of {n} {kind.unit}"

    def total(sign: int, scale: float = 1.0) -> dict[Hashable, float]:
        """Return the weighted sum over the sides whose weights have a sign, by unit; nothing without a side."""
        some = [(abs(weight) * scale, side.numbers) for weight, side in sides if weight * sign > 0]
        return {unit: sum(weight * (numbers[unit] or 0.0) for weight, numbers in some) for unit in units if some}

    first, other = total(1, clause.scale), total(-1)
    votes, tails = (0, 0), (kind.error / 2, kind.error / 2 / len(part.clauses))
    if clause.is_share:
        value, wide = (_share(first, other, tail, of_pairs=clause.share) for tail in tails)
    else:
        other = other or dict.fromkeys(first, 1.0 if clause.is_quotient else 0.0)
        of_first, of_other = (
            Side(values, "seed" if kind is Kind.TRAINED else "launch") for values in (first, other)
        )
        vote = any(side.lost for _, side in sides) or (
            clause.is_quotient and min(first.values(), default=1.0) <= 0
        )
        size = compare(of_first, of_other, quotient=clause.is_quotient, vote=vote)
        value, wide = (size.interval(1 - 2 * tail) for tail in tails)
        votes = sum(clause.keeps(each, each) for each in size.sizes), len(size.sizes)
    return Found(clause, value, wide, votes, len(part.clauses), len(units), doubt)


def _share(
    first: Mapping[Hashable, float], other: Mapping[Hashable, float], tail: float, *, of_pairs: bool
) -> Interval:
    """Return a share with exact bounds: of first numbers that are not 0, or ``of_pairs`` with a smaller first one.

    With two sides it is the difference of two shares of the same units, by those units of which only one side has
    the property (McNemar, Psychometrika 12, 1947).
    """
    less = sum(first[unit] < other.get(unit, 0.0) for unit in first)
    more = sum(first[unit] > other.get(unit, 0.0) for unit in first)
    if of_pairs or not other:
        return proportion_interval(less if of_pairs else more, len(first), tail)
    if not less + more:
        return Interval(0.0, math.nan, math.nan)
    bounds = proportion_interval(more, less + more, tail)
    return Interval(*((2 * bound - 1) * (less + more) / len(first) for bound in bounds))


def _validated(records: Iterable[Record], case: JsonMapping) -> float:
    """Return the highest accuracy on validation images of the trials of a case."""
    found = [record.tuning_trials or "" for record in matching(records, case)]
    trials = [entry for text in found for entry in text.split(", ") if entry]
    return max((float(entry.partition(": ")[2]) for entry in trials), default=-math.inf)
