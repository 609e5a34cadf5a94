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
from dataclasses import dataclass, fields
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
from hpcdl.fabric.network import NETWORKS
from hpcdl.report.formats.cells import NONE, digits
from hpcdl.report.published_results import IMAGES
from hpcdl.report.verdicts import Verdict
from hpcdl.suite import PAPERS
from hpcdl.trace.files import JsonMapping

SOURCES: Final = ("firecaffe", "distbelief", "lecture", "essay", "other")
"""Files, in the order of the page."""
HOLDS, FAILS, OPEN, ABSENT = "holds", "does not hold here", "undecided", "no run"
EXPECTED: Final = {"holds": HOLDS, "fails": FAILS}
SEEDED: Final = {
    "final_accuracy",
    "best_accuracy",
    "train_accuracy",
    "final_loss",
    "sharpness",
    "diverged",
    "smallest_eigenvalue",
    "test_loss",
    "test_accuracy",
}
"""Fields that depend on the seed, as those of a target do: one seed decides nothing."""
SHARES: Final = {"diverged", *(field.name for field in fields(Record) if field.type == "bool | None")}
"""Fields that are true or false of each seed: their number is a share of seeds, with exact bounds."""
FLOP_BY_BYTE: Final = ("flop_by_byte_of_parameters", "flop_by_byte_sent")
"""Arithmetic of a replica's step, by the bytes of the parameters, or by those that each rank sends."""
COUNTED: Final = {
    *FLOP_BY_BYTE,
    "compression_ratio",
    "parameters",
    "global_batch",
    "messages_per_rank",
    "tuning",
    "tuning_images",
}
"""Fields that are counted, as those with bytes are; arithmetic decides them."""
BOUNDS: Final = {"time_p50_seconds": ("time_p50_low_seconds", "time_p50_high_seconds")}
"""Fields of an interval that are not named after their field."""
ONE_SEED: Final = "one seed"
ONE_LAUNCH: Final = "one launch"
CORES: Final = "oversubscribed"
REMEDIES: Final = {
    ONE_SEED: "more seeds",
    ONE_LAUNCH: "several launches",
    CORES: "times of ranks that have cores of their own",
}


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
    def is_seeded(self) -> bool:
        """True if the number depends on the seed of a training."""
        return self.field in SEEDED or self.field.endswith("_to_target")

    @property
    def is_timed(self) -> bool:
        """True if the number depends on the time of the machine."""
        return any(word in self.field for word in ("second", "hours", "efficiency", "speedup"))


@dataclass(frozen=True)
class Claim:
    """A sentence of a source; it holds if all of its clauses hold."""

    text: str
    place: str
    clauses: Sequence[Clause]
    here: str = "holds"
    would_decide: str = ""


@dataclass(frozen=True)
class Source:
    """A source and its claims."""

    name: str
    title: str
    source: str
    claims: Sequence[Claim]


@dataclass(frozen=True)
class ClauseDecision:
    """A clause with its number here."""

    clause: Clause
    value: Interval
    """Value and bounds; not a number without records."""
    marks: Sequence[Mark] = ()
    doubt: str = ""
    """Reason for which the number decides nothing: a key of :data:`REMEDIES`, or empty."""

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
        if self.verdict == ABSENT:
            return f"a run of {self.clause.run} with its cases"
        return REMEDIES.get(self.doubt, "more seeds or launches: the interval contains the limit")


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
    def marks(self) -> list[Mark]:
        """Marks of all clauses."""
        return list(dict.fromkeys(mark for clause in self.clauses for mark in clause.marks))

    @property
    def remedy(self) -> str:
        """What would decide it; empty if it is decided."""
        if self.word in EXPECTED.values():
            return ""
        needs = dict.fromkeys(one.remedy for one in self.clauses if one.verdict in {OPEN, ABSENT})
        return self.claim.would_decide or "; ".join(needs)

    @property
    def verdict(self) -> Verdict:
        """Verdict on the claim; on one that comes out otherwise than before it fails."""
        numbers = "; ".join(
            f"{clause.clause.text or clause.clause.number}: {shown}" + (f" ({bounds})" if bounds != NONE else "")
            for clause in self.clauses
            for shown, bounds in [clause.here]
            if shown != NONE
        )
        return Verdict(
            topic="claims",
            word="otherwise" if self.is_surprising else self.word,
            question=self.claim.text,
            case=self.claim.text,
            size=self.clauses[0].value if self.clauses else NOTHING,
            marks=[mark for mark in self.marks if mark not in {one.doubt for one in self.clauses}],
            remedy=f"It takes {self.remedy}." if self.remedy else "",
            facts={"numbers": numbers or "no number", "verdict": self.word},
        )


def sources() -> list[Source]:
    """Return the sources of the package with their claims."""
    return [_source(name) for name in SOURCES]


def _source(name: str) -> Source:
    data = tomllib.loads((PAPERS / "claims" / f"{name}.toml").read_text(encoding="utf-8"))
    known = []
    for table in data["claim"]:
        text, place, here = table.pop("text"), table.pop("place"), table.pop("here", "holds")
        would_decide = table.pop("would_decide", "")
        clauses = table.pop("clause", [{}] if table else [])
        known.append(Claim(text, place, [Clause(**{**table, **clause}) for clause in clauses], here, would_decide))
    return Source(name, data["title"], data["source"], known)


def decide(claim: Claim, records: Mapping[str, Sequence[Record]]) -> Decision:
    """Return the decision by the records of each run."""
    return Decision(claim, [_decide(clause, records[clause.run]) for clause in claim.clauses])


def _decide(clause: Clause, records: Sequence[Record]) -> ClauseDecision:
    other = clause.by or clause.minus
    sides = [_known(clause.field, case, records) for case in (clause.case, other) if case is not None]
    value = _correlated(clause.against, sides[0]) if clause.against else _compared(clause, sides)
    if math.isnan(value.value):
        return ClauseDecision(clause, NOTHING)
    marks = dict.fromkeys(mark for side in sides for record, _ in side for mark in record.marks)
    known = [mark for mark in marks if mark == "simulated" or clause.is_timed]
    if clause.is_seeded and min(len(_by_seed(side)) for side in sides) < 2:
        return ClauseDecision(clause, value, known, ONE_SEED)
    measured = clause.is_timed and "simulated" not in known
    single = any(record.launches == 1 for side in sides for record, _ in side)
    doubt = CORES if CORES in known else ONE_LAUNCH if single else ""
    return ClauseDecision(clause, value, known, doubt if measured else "")


def _known(field: str, case: JsonMapping, records: Sequence[Record]) -> list[tuple[Record, float]]:
    """Return the records of a case that have a number, with it."""
    return [
        (record, value)
        for record in records
        if not record.error and all(str(record.stated(key)) == str(case[key]) for key in case)
        if (value := number(record, field)) is not None
    ]


def _by_seed(side: Sequence[tuple[Record, float]]) -> dict[int | None, float]:
    """Return the median over the records of each seed."""
    seeds = dict.fromkeys(record.seed for record, _ in side)
    return {seed: median(value for record, value in side if record.seed == seed) for seed in seeds}


def _compared(clause: Clause, sides: Sequence[Sequence[tuple[Record, float]]]) -> Interval:
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


def _correlated(other: str, side: Sequence[tuple[Record, float]]) -> Interval:
    """Return the rank correlation of the numbers of the records with another field of them."""
    pairs = [(value, known) for record, value in side if (known := number(record, other)) is not None]
    return rank_correlation(*zip(*pairs, strict=True)) if pairs else NOTHING


def _value(field: str, known: Sequence[tuple[Record, float]]) -> Interval:
    """Return the mean over seeds with its interval; with intervals of the records, the median and their ends."""
    seeds = _by_seed(known)
    if field in SHARES:
        return proportion_interval(sum(value > 0 for value in seeds.values()), len(seeds))
    if len(seeds) > 1 and all(map(math.isfinite, seeds.values())) and _bounds(known[0][0], field) is None:
        return mean_interval([*seeds.values()])
    ends = [_bounds(record, field) or (number, number) for record, number in known]
    return Interval(median(number for _, number in known), min(ends)[0], max(high for _, high in ends))


def number(record: Record, field: str) -> float | None:
    """Return a field of a record, or a number computed of several; None if it is unknown."""
    if field == "diverged":
        return float(record.diverged_step is not None)
    if field == "bytes_per_image":
        return (record.bytes_sent_per_rank or 0.0) / (record.global_batch or math.nan)
    if field in FLOP_BY_BYTE:
        flop = (record.modelled_compute_seconds or math.nan) * (record.flops or math.nan)
        size = record.bytes_sent_per_rank if field == "flop_by_byte_sent" else 4 * (record.parameters or 0)
        return flop / (size or math.nan)
    if field == "rank_seconds_to_target":
        return record.ranks * (number(record, "seconds_to_target") or math.nan)
    if field == "hours_of_64_epochs":
        return 64 * IMAGES / (record.images_per_second or math.nan) / 3600
    if field == "seconds_without_latency":
        network = NETWORKS[str(record.network)].on(record.settings.get("ranks_per_host", 1))
        link, seconds = network.common_link(record.ranks), record.time_p50_seconds or math.nan
        return seconds - (record.messages_per_rank or 0) * link.alpha if link else None
    value = record.stated(field)
    if value is None:  # one that missed its target needs more than any other
        return math.inf if field.endswith("_to_target") and record.target_accuracy is not None else None
    return float(value)


def _bounds(record: Record, field: str) -> tuple[float, float] | None:
    """Return the bounds of a record's interval; None if it has none."""
    low, high = (record.stated(name) for name in BOUNDS.get(field, (f"{field}_low", f"{field}_high")))
    return None if low is None or high is None else (float(low), float(high))
