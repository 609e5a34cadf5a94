"""Claims of the sources, decided by runs.

``hpcdl/papers/claims`` has a file for each source: ``title``, ``source``, and each ``[[claim]]`` in the source's
order. A claim has its sentence (``text``), its ``place`` in the source, and one or more clauses. A clause has the
keys of its claim that it does not give itself:

``run``, ``field``, ``case``
    the number: a field of the records of that run whose columns have these texts ("None": without a value);
``by``, ``minus``
    columns of other records, by whose number it is divided, or whose number is subtracted;
``against``
    another field, with which the field's rank correlation over the records is the number;
``above``, ``below``, ``because``
    limits, which the sentence contains, and their reason.

``would_decide`` says what an undecided claim needs; a claim without clauses has it alone. ``here = "fails"`` says
that runs are known to contradict the claim: the command fails when a decided claim comes out otherwise.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from hpcdl.analysis.run.record import Mark, Record
from hpcdl.analysis.statistics.estimates import (
    NOTHING,
    Interval,
    bounded_exp,
    mean_interval,
    proportion_interval,
    rank_correlation,
)
from hpcdl.report.formats.cells import NONE, digits, plural, whole
from hpcdl.report.formats.document import Axis, Bars, Document, Row, Section, Table, headed
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.published_results import number
from hpcdl.suite import PAPERS
from hpcdl.trace.files import JsonMapping
from hpcdl.trace.quantities import COLUMNS

SOURCES: Final = ("firecaffe", "distbelief", "lecture", "essay", "other")
"""Files, in the order of the page."""
HOLDS, FAILS, OPEN, ABSENT = "holds", "does not hold here", "undecided", "no run"
MARKS: Final = "\N{CHECK MARK}\N{BALLOT X}??"
MARKED: Final = {word: f"{mark} {word}" for word, mark in zip((HOLDS, FAILS, OPEN, ABSENT), MARKS, strict=True)}
"""Words of a verdict behind its mark."""
EXPECTED: Final = {"holds": HOLDS, "fails": FAILS}
SEEDED: Final = {"diverged", *(name for name, quantity in COLUMNS.items() if quantity.seeded)}
"""Fields that depend on the seed, as those of a target do: one seed decides nothing."""
SHARES: Final = {"diverged", *(name for name, quantity in COLUMNS.items() if "boolean" in quantity.types)}
"""Fields that are true or false of each seed: their number is a share of seeds, with exact bounds."""
COUNTED: Final = {
    "flop_by_byte_of_parameters",
    "flop_by_byte_sent",
    "compression_ratio",
    "parameters",
    "global_batch",
    "messages_per_rank",
    "tuning",
    "tuning_images",
}
"""Fields that are counted, as those with bytes are; arithmetic decides them."""
ONE_SEED, ONE_LAUNCH, CORES = "one seed", "one launch", "oversubscribed"
REMEDIES: Final = {
    "": "more seeds or launches: the interval contains the limit",
    ONE_SEED: "more seeds",
    ONE_LAUNCH: "several launches",
    CORES: "times of ranks that have cores of their own",
}
"""By the reason for which a number decides nothing."""
HEADER: Final = ("claim", "verdict", "here", "interval", "decided by", "number", "limit")
NOTE: Final = (
    "A clause holds if the whole interval of its number is on the claimed side of its limits; a claim if all of "
    "its clauses do. Intervals are those of the runs' reports, or Student's t over seeds, of differences by seed "
    "where both sides share some; with a target that a seed misses, the range over seeds; of shares of seeds, "
    "exact bounds. A number without chance has none. One seed, a time of one launch, or one of ranks that share "
    "cores, decides nothing."
)


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
    against: str = ""
    above: float | None = None
    below: float | None = None
    because: str = ""

    @property
    def number(self) -> str:
        """What is computed, in words."""
        field = self.field.replace("_", " ")
        if self.against:
            return f"rank correlation of {field} and {self.against.replace('_', ' ')}"
        return ("ratio of " if self.by else "difference of " if self.minus else "") + field

    @property
    def limit(self) -> str:
        """The limits, and their reason."""
        signs = ((">", self.above), ("<", self.below))
        limits = ", ".join(f"{sign} {limit:g}" for sign, limit in signs if limit is not None)
        return limits + (f": {self.because}" if self.because else "")

    @property
    def is_seeded(self) -> bool:
        """True if the number depends on the seed of a training."""
        return self.field in SEEDED or self.field.endswith("_to_target")

    @property
    def is_timed(self) -> bool:
        """True if the number depends on the time of the machine."""
        return any(word in self.field for word in ("second", "hours", "efficiency", "speedup"))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of a source; it holds if all of its clauses hold."""

    text: str
    place: str
    clauses: Sequence[Clause] = ()
    here: str = "holds"
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
        """One of :data:`HOLDS`, :data:`FAILS`, :data:`OPEN`, :data:`ABSENT`."""
        value, low, high = self.value
        if math.isnan(value):
            return ABSENT
        if self.doubt:
            return OPEN
        above, below = self.clause.above, self.clause.below
        if (above is None or low > above) and (below is None or high < below):
            return HOLDS
        wrong = (above is not None and high < above) or (below is not None and low > below)
        return FAILS if wrong else OPEN

    @property
    def here(self) -> tuple[str, str]:
        """Number and bounds, as texts."""
        value, low, high = self.value
        spread = f"at least {digits(low)}" if math.isinf(high) else f"{digits(low)} to {digits(high)}"
        shown = "infinite, as a target was missed" if math.isinf(value) else digits(value)
        return (NONE, NONE) if math.isnan(value) else (shown, self.doubt or (NONE if low == high else spread))

    @property
    def means(self) -> str:
        """What decides it: arithmetic, a simulation or a measurement, with further marks."""
        if math.isnan(self.value.value):
            return NONE
        if self.clause.field in COUNTED or ("bytes" in self.clause.field and not self.clause.is_timed):
            return "arithmetic"
        simulated = "simulated" in self.marks
        return ", ".join(["simulated" if simulated else "measured", *(m for m in self.marks if m != "simulated")])

    @property
    def remedy(self) -> str:
        """What would decide an open clause."""
        return f"a run of {self.clause.run} with its cases" if self.verdict == ABSENT else REMEDIES[self.doubt]

    @property
    def cells(self) -> Row:
        """Cells of :data:`HEADER` but the first."""
        clause = self.clause
        return MARKED[self.verdict], *self.here, f"{self.means} (run {clause.run})", clause.number, clause.limit


@dataclass(frozen=True)
class Decision:
    """A claim with its decided clauses."""

    claim: Claim
    clauses: Sequence[ClauseDecision]

    @property
    def word(self) -> str:
        """Verdict on the claim: that on all clauses if they agree; one that fails decides it."""
        words = {clause.verdict for clause in self.clauses}
        return FAILS if FAILS in words else words.pop() if len(words) == 1 else OPEN

    @property
    def is_surprising(self) -> bool:
        """True if the verdict is the opposite of what the claim says of these runs."""
        return self.word in EXPECTED.values() and self.word != EXPECTED[self.claim.here]

    @property
    def remedy(self) -> str:
        """What would decide it; empty if it is decided."""
        if self.word in EXPECTED.values():
            return ""
        needs = dict.fromkeys(clause.remedy for clause in self.clauses if clause.verdict in {OPEN, ABSENT})
        return self.claim.would_decide or "; ".join(needs)

    @property
    def verdict(self) -> Verdict:
        """Verdict on the claim; on one that comes out otherwise than before it fails."""
        numbers = "; ".join(
            f"{each.clause.text or each.clause.number}: {shown}" + (f" ({bounds})" if bounds != NONE else "")
            for each in self.clauses
            for shown, bounds in [each.here]
            if shown != NONE
        )
        marks = dict.fromkeys(mark for clause in self.clauses for mark in clause.marks)
        return Verdict(
            topic="claims",
            word="otherwise" if self.is_surprising else self.word,
            question=self.claim.text,
            case=self.claim.text,
            size=self.clauses[0].value if self.clauses else NOTHING,
            marks=[mark for mark in marks if mark not in {clause.doubt for clause in self.clauses}],
            remedy=f"It takes {self.remedy}." if self.remedy else "",
            facts={"numbers": numbers or "no number", "verdict": self.word},
        )

    @property
    def rows(self) -> list[Row]:
        """Rows of :data:`HEADER`: of the claim, and of each of several clauses."""
        single = len(self.clauses) == 1
        cells = self.clauses[0].cells if single else (MARKED[self.word], *[NONE] * 5)
        clauses = [(f"- {clause.clause.text}", *clause.cells) for clause in self.clauses]
        return [(f"{self.claim.text} ({self.claim.place})", *cells), *([] if single else clauses)]


def sources() -> list[Source]:
    """Return the sources of the package with their claims."""
    return [_source(name) for name in SOURCES]


def _source(name: str) -> Source:
    data = tomllib.loads((PAPERS / "claims" / f"{name}.toml").read_text(encoding="utf-8"))
    claims = []
    for table in data["claim"]:
        own = {key: table.pop(key) for key in ("text", "place", "here", "would_decide") if key in table}
        clauses = table.pop("clause", [{}] if table else [])
        claims.append(Claim(**own, clauses=[Clause(**{**table, **clause}) for clause in clauses]))
    return Source(data["title"], data["source"], claims)


def document(sources: Sequence[Source], records: Mapping[str, Sequence[Record]]) -> Document:
    """Return the page of the decisions on the claims of each source, by the records of each run."""
    decided = [[decide(claim, records) for claim in source.claims] for source in sources]
    every = [decision for decisions in decided for decision in decisions]
    otherwise = [decision.verdict for decision in every if decision.is_surprising]
    counts = {
        word: [float(sum(decision.word == word for decision in decisions)) for decisions in decided]
        for word in (HOLDS, FAILS)
    }
    titles = [f"{source.title} (of {len(source.claims)})" for source in sources]
    chart = Bars("Decided claims", titles, counts, Axis("claims", whole))
    sections = [_section(*pair) for pair in zip(sources, decided, strict=True)]
    head = Section("Claims by source", [NOTE], charts=[chart])
    return headed("hpcdl: claims", [summary(every), *otherwise], [head, *sections])


def summary(decisions: Sequence[Decision]) -> Verdict:
    """Return how many claims are decided."""
    words = [decision.word for decision in decisions]
    holds, fails = words.count(HOLDS), words.count(FAILS)
    return Verdict(
        topic="claims",
        word="decided" if holds + fails else "nothing decided",
        facts={
            "decided": str(holds + fails),
            "claims": plural(len(decisions), "claim"),
            "counts": f"{holds} hold{'s' * (holds == 1)}, {fails} {'does' if fails == 1 else 'do'} not hold here",
        },
    )


def _section(source: Source, decisions: Sequence[Decision]) -> Section:
    """Return the section of a source: a row for each claim, and what would decide the open ones."""
    needs = [(decision.claim.text, decision.remedy) for decision in decisions if decision.remedy]
    points = [f"{text}. Undecided: it takes {remedy}." for text, remedy in needs]
    table = Table(
        "",
        HEADER,
        [row for decision in decisions for row in decision.rows],
        2,
        answers=("verdict", "here", "interval", "number", "limit"),
    )
    return Section(source.title, [f"{source.source}. {summary(decisions).sentence}"], points, [table])


Side = Sequence[tuple[Record, float]]
"""Records of a case that have a number, with it."""


def decide(claim: Claim, records: Mapping[str, Sequence[Record]]) -> Decision:
    """Return the decision by the records of each run."""
    return Decision(claim, [_decide(clause, records[clause.run]) for clause in claim.clauses])


def _decide(clause: Clause, records: Sequence[Record]) -> ClauseDecision:
    other = clause.by or clause.minus
    sides = [_side(clause.field, case, records) for case in (clause.case, other) if case is not None]
    value = _correlated(clause.against, sides[0]) if clause.against else _compared(clause, sides)
    if math.isnan(value.value):
        return ClauseDecision(clause)
    marks = dict.fromkeys(mark for side in sides for record, _ in side for mark in record.marks)
    shown = [mark for mark in marks if mark == "simulated" or clause.is_timed]
    if clause.is_seeded and min(len(_by_seed(side)) for side in sides) < 2:
        return ClauseDecision(clause, value, shown, ONE_SEED)
    measured = clause.is_timed and "simulated" not in shown
    single = any(record.launches == 1 for side in sides for record, _ in side)
    doubt = CORES if CORES in shown else ONE_LAUNCH if single else ""
    return ClauseDecision(clause, value, shown, doubt if measured else "")


def _side(field: str, case: JsonMapping, records: Sequence[Record]) -> Side:
    """Return the records of a case that have a number, with it."""
    return [
        (record, value)
        for record in records
        if not record.error and all(str(record.stated(key)) == str(case[key]) for key in case)
        if (value := number(record, field)) is not None
    ]


def _by_seed(side: Side) -> dict[int | None, float]:
    """Return the median over the records of each seed."""
    seeds = dict.fromkeys(record.seed for record, _ in side)
    return {seed: median(value for record, value in side if record.seed == seed) for seed in seeds}


def _compared(clause: Clause, sides: Sequence[Side]) -> Interval:
    """Return the number of a clause: by seed if both sides share some, else of each side apart."""
    if not all(sides):
        return NOTHING
    seeds = [_by_seed(side) for side in sides]
    first, last = seeds[0], seeds[-1]
    common = [seed for seed in first if seed in last]
    if clause.is_seeded and clause.field not in SHARES and len(sides) == 2 and len(common) > 1:
        pairs = [(first[seed], last[seed]) for seed in common]
        if clause.minus:
            return mean_interval([value - at for value, at in pairs])
        if all(0 < at < math.inf and 0 < value < math.inf for value, at in pairs):
            return Interval(*map(bounded_exp, mean_interval([math.log(value / at) for value, at in pairs])))
    value, *seconds = [_value(clause.field, side) for side in sides]
    for at, least, most in seconds:
        if clause.minus:
            return Interval(value.value - at, value.low - most, value.high - least)
        if least <= 0 or math.inf == value.value == at:
            return NOTHING
        return Interval(value.value / at, value.low / most, value.high / least)
    return value


def _correlated(other: str, side: Side) -> Interval:
    """Return the rank correlation of the numbers of the records with another field of them."""
    pairs = [(value, against) for record, value in side if (against := number(record, other)) is not None]
    return rank_correlation(*zip(*pairs, strict=True)) if pairs else NOTHING


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
