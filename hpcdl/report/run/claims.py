"""Claims of the sources, decided by runs.

``hpcdl/papers/claims`` has a file for each source: ``title``, ``source``, and each ``[[claim]]``. A claim has its
sentence (``text``), its ``place`` in the source, and one or more clauses. A clause has the keys of its claim that
it does not give itself, and the columns of its cases:

``text``
    measurement as a sentence, with ``{}`` in the place of the number;
``run``, ``field``, ``case``
    the number: a field of the records of that run whose columns have these texts ("None": without a value);
    run ``pico`` has the times that others measured on real clusters, in the package;
``by``, ``minus``
    columns in which other records differ, by whose number it is divided, or whose number is subtracted;
``above``, ``below``, ``because``
    limits, which the sentence contains, and their reason;
``could_fail``
    what the experiment could have shown instead;
``assumes``
    of a clause that no experiment decides: from what it follows.

By what a clause is decided follows from its records (:class:`Kind`). Only measurements and trainings decide a
claim; a simulated time follows from assumptions. Counts that any run of a method has are no claims, but tests.

``would_decide`` names what an undecided claim needs. ``here = "no"``: runs are known to contradict the claim.
The command fails when a decided claim has the opposite verdict.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from statistics import median
from typing import Final

from hpcdl.analysis.run.record import Mark, Record, by_units
from hpcdl.analysis.statistics import judging
from hpcdl.analysis.statistics.estimates import NOTHING, Interval, mean_interval, proportion_interval
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
YES, NO, OPEN, ABSENT, MODEL = "yes", "no", "not decided", "no run", "model"
WORST_FIRST: Final = (NO, OPEN, ABSENT, MODEL, YES)
"""Verdicts. Model: a clause of the claim rests on assumptions alone, and none that is decided fails."""


class Kind(StrEnum):
    """By what a clause is decided, or why it is not."""

    HERE = "measured here"
    OTHERS = "measured by others"
    TRAINED = "trained in virtual time"
    """Real gradients, simulated clock: losses, accuracies and epochs, never seconds."""
    MODEL = "model"
    """Its answer follows from a network model, from given compute times or from a simulated schedule."""


DECIDE: Final = frozenset({Kind.HERE, Kind.OTHERS, Kind.TRAINED})
BY_DATA: Final = frozenset({"compression_ratio", "bits_per_entry", "entropy_bits_per_entry"})
"""Counted fields that depend on the gradients of a training."""
BY_SEED: Final = {name for name, quantity in COLUMNS.items() if quantity.seeded}
SHARES: Final = {"diverged", *(name for name, quantity in COLUMNS.items() if "boolean" in quantity.types)}
"""Fields that are true or false of each seed: their number is a share of seeds, with exact bounds."""
UNITS: Final = {
    **dict.fromkeys(("speedup", "compression_ratio"), "times"),
    "hours_of_64_epochs": "hours",
    **dict.fromkeys(("step_seconds", "time_p50_seconds", "seconds_to_target"), "s"),
}
"""Units of numbers that are neither ratios nor differences; others have none."""
REMEDIES: Final = {
    "": "more seeds or launches, because the interval contains the limit",
    "1 seed": "more seeds than one",
    "1 launch": "more launches than one",
    "1 job": "times of several jobs",
    "ranks share cores": "times of ranks that do not share cores",
    "no interval": "more seeds than one, because this time has no interval over launches",
    "a seed has no number": "trainings that neither diverge nor fail with any seed",
}
"""By the reason for which a number decides nothing."""


@dataclass(frozen=True, kw_only=True)
class Clause:
    """A part of a claim that one number decides, and the records of the number."""

    text: str = ""
    run: str
    """Folder of the run."""
    field: str
    case: JsonMapping
    by: JsonMapping | None = None
    minus: JsonMapping | None = None
    above: float | None = None
    below: float | None = None
    because: str = ""
    could_fail: str = ""
    assumes: str = ""

    @property
    def unit(self) -> str:
        """Unit of the number as people read it; a ratio is a share if its limit is at most all of it."""
        if self.minus and (self.field in SHARES or self.field.endswith("accuracy")):
            return "points"
        if self.field in SHARES or (self.by and ((self.below or 2) <= 1 or (self.above or 1) < 1)):
            return "%"
        return "times" if self.by else "" if self.minus else UNITS.get(self.field, "")

    def shown(self, value: Number) -> str:
        """Return a number with its unit."""
        if value is not None and self.unit == "points":
            return f"{100 * value:+.1f} points"
        return percent(value) if self.unit == "%" else f"{digits(value)} {self.unit}".rstrip()

    @property
    def limit(self) -> str:
        """The limits."""
        scale = 100 if self.unit in {"%", "points"} else 1
        above, below = (None if limit is None else f"{scale * limit:g}" for limit in (self.above, self.below))
        text = f"{above} to {below}" if above and below else f"above {above}" if above else f"below {below}"
        return text if self.unit == "times" else f"{text} {self.unit}".rstrip()

    @property
    def is_seeded(self) -> bool:
        """True if the number depends on the seed of a training, so that one seed decides nothing."""
        return self.field in {"diverged", *BY_SEED} or self.field.endswith("_to_target")

    @property
    def is_timed(self) -> bool:
        """True if the number depends on the time of the machine."""
        return any(word in self.field for word in ("second", "hours", "efficiency", "speedup"))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of a source; it is confirmed if all of its clauses are."""

    text: str
    place: str
    source: str = ""
    """Title of the source."""
    clauses: Sequence[Clause] = ()
    here: str = YES
    """Verdict of earlier runs."""
    would_decide: str = ""


@dataclass(frozen=True)
class Source:
    """A source and its claims."""

    title: str
    source: str
    claims: Sequence[Claim]


@dataclass(frozen=True)
class ClauseDecision:
    """A clause with its number here."""

    clause: Clause
    value: Interval = NOTHING
    """Value and bounds; not a number without records."""
    marks: Sequence[Mark] = ()
    doubt: str = ""
    """Reason for which the number decides nothing: a key of :data:`REMEDIES`."""

    @property
    def verdict(self) -> str:
        """One of :data:`WORST_FIRST`."""
        value, low, high = self.value
        if math.isnan(value):
            return ABSENT
        if self.doubt:
            return OPEN
        above, below = self.clause.above, self.clause.below
        if (above is None or low > above) and (below is None or high < below):
            return YES
        wrong = (above is not None and high < above) or (below is not None and low > below)
        return NO if wrong else OPEN

    @property
    def margin(self) -> float:
        """Distance of the interval from the nearest limit, as a share of the limit if it is not 0."""
        limits = ((self.value.low, self.clause.above), (self.value.high, self.clause.below))
        return min(abs(end - limit) / (abs(limit) or 1) for end, limit in limits if limit is not None)

    @property
    def here(self) -> tuple[str, str]:
        """Number and bounds, as texts."""
        (value, low, high), shown = self.value, self.clause.shown
        bounds = f"at least {shown(low)}" if math.isinf(high) else interval(low, high, shown)
        bounds = NONE if low == high else bounds.removesuffix(f" {self.clause.unit}")
        text = "infinite, because a seed misses the target" if math.isinf(value) else shown(value)
        return (NONE, NONE) if math.isnan(value) else (text, self.doubt or bounds)

    @property
    def sentence(self) -> str:
        """Measurement in words, with the number and its interval."""
        text, (shown, bounds) = self.clause.text, self.here
        shown = shown.replace("points", "percentage points")
        number = shown if bounds in {NONE, self.doubt} else f"{shown} ({bounds})"
        return text.format(number) if "{}" in text else f"{text}: {number}".removeprefix(": ")

    @property
    def kind(self) -> Kind:
        """By what it is decided, by its records; meaningless without any."""
        clause, is_simulated = self.clause, "simulated" in self.marks
        if clause.run == BY_OTHERS:
            return Kind.OTHERS
        if not is_simulated:
            return Kind.HERE
        is_trained = (clause.is_seeded or clause.field in BY_DATA) and not clause.is_timed
        return Kind.TRAINED if is_trained else Kind.MODEL

    @property
    def is_decided(self) -> bool:
        """False if it follows from assumptions."""
        return self.verdict == ABSENT or self.kind in DECIDE

    @property
    def means(self) -> str:
        """Its kind, with the flags of its records."""
        if math.isnan(self.value.value):
            return NONE
        return ", ".join([self.kind, *(mark for mark in self.marks if mark != "simulated")])


@dataclass(frozen=True)
class Decision:
    """A claim with its decided clauses."""

    claim: Claim
    clauses: Sequence[ClauseDecision]

    @property
    def decided(self) -> list[ClauseDecision]:
        """The clauses that a measurement or a training decides, and those without a run."""
        return [clause for clause in self.clauses if clause.is_decided]

    @property
    def assumed(self) -> list[ClauseDecision]:
        """The clauses that follow from assumptions."""
        return [clause for clause in self.clauses if not clause.is_decided]

    @property
    def word(self) -> str:
        """Verdict on the claim: a decided clause that fails decides it; without a number there is no run."""
        words = {clause.verdict for clause in self.decided}
        if NO in words:
            return NO
        if self.assumed:
            return MODEL
        if words <= {ABSENT}:
            return ABSENT
        return OPEN if words & {OPEN, ABSENT} else YES

    @property
    def deciding(self) -> ClauseDecision | None:
        """The clause with the worst verdict, of several the one nearest to its limit; None without clauses.

        If the claim follows from the model, it is the worst of the clauses that do.
        """
        chosen = self.assumed if self.word == MODEL else self.decided
        worst = min((WORST_FIRST.index(clause.verdict) for clause in chosen), default=0)
        same = [clause for clause in chosen if clause.verdict == WORST_FIRST[worst]]
        return min(same, key=lambda clause: clause.margin, default=None)

    @property
    def is_surprising(self) -> bool:
        """True if the verdict, or the answer of the model, is the opposite of the expected one."""
        return self.answer in {YES, NO} and self.answer != self.claim.here

    @property
    def answer(self) -> str:
        """The verdict; of a claim that follows from the model that of all its clauses."""
        if self.word != MODEL:
            return self.word
        words = {clause.verdict for clause in self.clauses}
        return NO if NO in words else YES if words == {YES} else OPEN

    @property
    def remedy(self) -> str:
        """Runs that would decide an open claim; empty if it is decided, or has no run."""
        if self.word != OPEN or self.deciding is None:
            return ""
        if self.deciding.verdict == ABSENT:
            return f"a run of suite {self.deciding.clause.run} that has its cases"
        return self.claim.would_decide or REMEDIES[self.deciding.doubt]

    @property
    def verdict(self) -> Verdict:
        """Verdict on the claim; on one that comes out otherwise than before it fails."""
        clause = self.deciding
        finding = clause.sentence if clause and clause.verdict != ABSENT else "one of its numbers has no run"
        return Verdict(
            topic="claims",
            word="changed" if self.is_surprising else self.word,
            question=self.claim.text,
            case=f"{self.claim.source} claims: {self.claim.text}",
            size=clause.value if clause else NOTHING,
            remedy=f"To decide it: {self.remedy}." if self.remedy else "",
            facts={
                "finding": finding,
                "verdict": ("confirmed" if self.answer == YES else "refuted")
                + " by the model" * (self.word == MODEL),
                "model": BY_MODEL.get(self.answer, BY_MODEL[OPEN]),
            },
        )


BY_MODEL: Final = {
    YES: "This follows from assumptions",
    NO: "The opposite follows from assumptions",
    OPEN: "Assumptions leave it open",
}


def sources(names: Sequence[str] = SOURCES) -> list[Source]:
    """Return sources of the package with their claims."""
    found = []
    for name in names:
        data = tomllib.loads((PAPERS / "claims" / f"{name}.toml").read_text(encoding="utf-8"))
        claims = []
        for table in data["claim"]:
            own = {key: table.pop(key) for key in ("text", "place", "here", "would_decide") if key in table}
            clauses = [_clause(table, clause) for clause in table.pop("clause", [{}] if table else [])]
            claims.append(Claim(**own, source=data["title"], clauses=clauses))
        found.append(Source(data["title"], data["source"], claims))
    return found


def _clause(claim: JsonObject, own: JsonObject) -> Clause:
    """Return a clause with the keys of its claim, and complete cases."""
    both = {key: {**claim.get(key, {}), **own.get(key, {})} for key in ("case", "by", "minus")}
    sides = {key: {**both["case"], **both[key]} for key in ("by", "minus") if both[key]}
    return Clause(**{**claim, **own, "case": both["case"], **sides})


Side = Sequence[tuple[Record, float]]


def decide(claim: Claim, records: Mapping[str, Sequence[Record]]) -> Decision:
    """Return the decision by the records of each run."""
    return Decision(claim, [_decide(clause, records[clause.run]) for clause in claim.clauses])


def _decide(clause: Clause, records: Sequence[Record]) -> ClauseDecision:
    cases = [case for case in (clause.case, clause.by or clause.minus) if case is not None]
    same = [
        [record for record in records if all(str(record.stated(key)) == str(case[key]) for key in case)]
        for case in cases
    ]
    sides = [[(one, n) for one in found if (n := _number(clause.field, one)) is not None] for found in same]
    value = _compared(clause, sides)
    if math.isnan(value.value):
        return ClauseDecision(clause)
    marks = dict.fromkeys(mark for side in sides for record, _ in side for mark in record.marks)
    shown = [mark for mark in marks if mark == "simulated" or clause.is_timed]
    measured = clause.is_timed and "simulated" not in shown
    lost = [record for found in same for record in found if record.error or record.diverged_step is not None]
    doubts = {
        "a seed has no number": any(_number(clause.field, record) is None for record in lost),
        "1 seed": clause.is_seeded and min(len(_by_seed(side)) for side in sides) < 2,
        "ranks share cores": measured and "oversubscribed" in shown,
        "1 job": clause.run == BY_OTHERS and math.isnan(value.low),
        "1 launch": measured and any(record.launches == 1 for side in sides for record, _ in side),
        "no interval": measured and not clause.is_seeded and value.low == value.high,
    }
    return ClauseDecision(clause, value, shown, next((doubt for doubt in doubts if doubts[doubt]), ""))


def _number(field: str, record: Record) -> float | None:
    """Return the number of a record; a training failed with values that a compressor cannot send has diverged."""
    if not record.error:
        return number(record, field)
    return 1.0 if field == "diverged" and FloatingPointError.__name__ in record.error else None


def _by_seed(side: Side) -> dict[Hashable, float]:
    """Return the median over the records of each seed."""
    seeds = dict.fromkeys(record.seed for record, _ in side)
    return {seed: median(value for record, value in side if record.seed == seed) for seed in seeds}


def _compared(clause: Clause, sides: Sequence[Side]) -> Interval:
    """Return the number of a clause: of one side, or of both by the rule for two sides."""
    if not all(sides):
        return NOTHING
    if len(sides) == 1:
        return _value(clause.field, sides[0])
    if clause.field in SHARES:
        (value, low, high), (at, least, most) = (_value(clause.field, side) for side in sides)
        return Interval(value - at, low - most, high - least)
    first, other = (_judged(clause, side) for side in sides)
    limit = clause.below if clause.above is None else clause.above
    ((judged,),) = judging.judge([[first, other]], quotient=clause.minus is None, limit=limit)
    if judged.votes and judged.word != "open":
        return Interval(*[judged.size.value] * 3)
    return judged.size


def _judged(clause: Clause, side: Side) -> judging.Side:
    """Return the numbers of a side by seed, or, of times, by launch."""
    seeds, records = _by_seed(side), [record for record, _ in side]
    if clause.is_seeded:
        return judging.Side(seeds, "seed")
    exact = all(record.is_exact for record in records) and len({*seeds.values()}) == 1
    return judging.Side(by_units(records, partial(_number, clause.field)), exact=exact)


def _value(field: str, side: Side) -> Interval:
    """Return the mean over seeds with its interval; with intervals of the records, the median and their ends."""
    seeds = _by_seed(side)
    if field in SHARES:
        return proportion_interval(sum(value > 0 for value in seeds.values()), len(seeds))
    if len(seeds) > 1 and all(map(math.isfinite, seeds.values())) and _bounds(side[0][0], field) is None:
        return mean_interval([*seeds.values()])
    ends = [_bounds(record, field) or (number, number) for record, number in side]
    return Interval(median(number for _, number in side), min(ends)[0], max(high for _, high in ends))


def _bounds(record: Record, field: str) -> tuple[float, float] | None:
    """Return the bounds of a record's interval; None if it has none."""
    quantity = COLUMNS.get(field)
    if quantity is None or quantity.low is None or quantity.high is None:
        return None
    low, high = quantity.low.of(record), quantity.high.of(record)
    return None if low is None or high is None else (float(low), float(high))
