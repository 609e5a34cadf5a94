"""Claims of papers, decided by runs; ``claims.toml`` beside this file describes its keys."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from hpcdl.analysis.run.record import Mark, Record
from hpcdl.analysis.statistics.estimates import NOTHING, Interval
from hpcdl.fabric.network import NETWORKS
from hpcdl.report.formats.cells import NONE, digits, plural
from hpcdl.report.formats.document import Document, Section, Table, headed
from hpcdl.report.verdicts import Verdict
from hpcdl.trace.files import JsonMapping

FILE: Final = Path(__file__).parent / "claims.toml"
HOLDS, FAILS, OPEN, ABSENT = "holds", "does not hold here", "undecided", "no run"
EXPECTED: Final = {"holds": HOLDS, "fails": FAILS}
LUCK: Final = "final_accuracy"
"""Field that depends on the seed: one seed decides nothing."""
BOUNDS: Final = {"time_p50_seconds": ("time_p50_low_seconds", "time_p50_high_seconds")}
"""Fields of an interval that are not named after their field."""


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

    @property
    def number(self) -> str:
        """What is computed, in words."""
        return ("ratio of " if self.by else "difference of " if self.minus else "") + self.field.replace("_", " ")


@dataclass(frozen=True)
class Claim:
    """A sentence of a source; it holds if all of its clauses hold."""

    text: str
    source: str
    clauses: Sequence[Clause]
    here: str = "holds"


@dataclass(frozen=True)
class ClauseDecision:
    """A clause with its number here."""

    clause: Clause
    value: Interval
    """Median and bounds; not a number without records."""
    marks: Sequence[Mark] = ()

    @property
    def verdict(self) -> str:
        """One of :data:`HOLDS`, :data:`FAILS`, :data:`OPEN`, :data:`ABSENT`."""
        value, low, high = self.value
        if math.isnan(value):
            return ABSENT
        above, below = self.clause.above, self.clause.below
        if (above is None or low > above) and (below is None or high < below):
            return HOLDS
        wrong = (above is not None and high < above) or (below is not None and low > below)
        return FAILS if wrong else OPEN

    @property
    def here(self) -> tuple[str, str]:
        """Number and bounds, as texts."""
        value, low, high = self.value
        bounds = "one seed" if math.isinf(low) else NONE if low == high else f"{digits(low)} to {digits(high)}"
        return (NONE, NONE) if math.isnan(value) else (digits(value), bounds)


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
            size=self.clauses[0].value,
            marks=self.marks,
            facts={"numbers": numbers, "verdict": self.word},
        )


def claims() -> list[Claim]:
    """Return the claims of the package; a clause has the keys of its claim that it does not give itself."""
    known = []
    for table in tomllib.loads(FILE.read_text(encoding="utf-8"))["claim"]:
        text, source, here = table.pop("text"), table.pop("source"), table.pop("here", "holds")
        clauses = table.pop("clause", [{}])
        known.append(Claim(text, source, [Clause(**{**table, **clause}) for clause in clauses], here))
    return known


def decide(claim: Claim, records: Mapping[str, Sequence[Record]]) -> Decision:
    """Return the decision by the records of each run."""
    return Decision(claim, [_decide(clause, records[clause.run]) for clause in claim.clauses])


def _decide(clause: Clause, records: Sequence[Record]) -> ClauseDecision:
    other = clause.by or clause.minus
    sides = [_known(clause.field, case, records) for case in (clause.case, other) if case is not None]
    used = [record for side in sides for record, _ in side]
    marks = dict.fromkeys(mark for record in used for mark in record.marks)
    known = [mark for mark in marks if mark == "simulated" or _is_timed(clause.field)]
    value, *seconds = [_value(clause.field, side) for side in sides]
    for at, least, most in seconds:
        if clause.minus:
            value = Interval(value.value - at, value.low - most, value.high - least)
        else:
            value = Interval(value.value / at, value.low / most, value.high / least) if least > 0 else NOTHING
    return ClauseDecision(clause, value, known if not math.isnan(value.value) else [])


def _is_timed(field: str) -> bool:
    return any(word in field for word in ("second", "efficiency", "speedup"))


def _known(field: str, case: JsonMapping, records: Sequence[Record]) -> list[tuple[Record, float]]:
    """Return the records of a case that have a number, with it."""
    return [
        (record, number)
        for record in records
        if not record.error and all(str(record.stated(key)) == str(case[key]) for key in case)
        if (number := _number(record, field)) is not None
    ]


def _value(field: str, known: Sequence[tuple[Record, float]]) -> Interval:
    """Return the median over the records of a case, and the ends of their intervals or of their range."""
    if not known:
        return NOTHING
    if field == LUCK and len(known) == 1:
        return Interval(known[0][1], -math.inf, math.inf)
    lows, highs = zip(*(_bounds(record, field, number) for record, number in known), strict=True)
    return Interval(median(number for _, number in known), min(lows), max(highs))


def _number(record: Record, field: str) -> float | None:
    """Return a field of a record, or a number computed of several; None if it is unknown."""
    if field == "diverged":
        return float(record.diverged_step is not None)
    if field == "bytes_per_image":
        return (record.bytes_sent_per_rank or 0.0) / (record.global_batch or math.nan)
    if field == "seconds_without_latency":
        network = NETWORKS[str(record.network)].on(record.settings.get("ranks_per_host", 1))
        link = network.common_link(record.ranks)
        return (
            (record.time_p50_seconds or math.nan) - (record.messages_per_rank or 0) * link.alpha if link else None
        )
    value = record.stated(field)
    return None if value is None else float(value)


def _bounds(record: Record, field: str, value: float) -> tuple[float, float]:
    """Return the bounds of a record's interval; the value twice if it has none."""
    low, high = (record.stated(name) for name in BOUNDS.get(field, (f"{field}_low", f"{field}_high")))
    return (value, value) if low is None or high is None else (float(low), float(high))


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
            "counts": f"{holds} hold, {fails} do not hold here",
        },
    )


def document(decisions: Sequence[Decision]) -> Document:
    """Return the decisions as a document."""
    every = [decision.verdict for decision in decisions]
    surprising = [verdict for verdict in every if verdict.word == "otherwise"]
    failing = [verdict for verdict in every if verdict.word == FAILS]
    header = ("claim", "source", "verdict", "here", "95 % or range", "limit", "number", "run", "marks")
    rows = [row for decision in decisions for row in _rows(decision)]
    note = (
        "A clause holds if the whole interval of its number is on the claimed side of its limits; a claim if all "
        "of its clauses do. Intervals are those of the runs' reports; without one the range over seeds. A "
        "simulated number has none. Accuracies of one seed decide nothing."
    )
    table = Table("", header, rows, 3, [note], key="verdict")
    return headed(
        "hpcdl: claims", [summary(decisions), *surprising, *failing], [Section("Claims", tables=[table])]
    )


def _rows(decision: Decision) -> list[tuple[str, ...]]:
    """Return the row of a claim; of several clauses also a row for each."""
    claim, clauses = decision.claim, decision.clauses
    if len(clauses) == 1:
        return [(claim.text, claim.source, *_cells(clauses[0]))]
    whole = (claim.text, claim.source, decision.word, *[NONE] * 5, ", ".join(decision.marks) or NONE)
    return [whole, *((f"- {clause.clause.text}", NONE, *_cells(clause)) for clause in clauses)]


def _cells(decision: ClauseDecision) -> tuple[str, ...]:
    clause = decision.clause
    limits = [
        f"{sign} {limit:g}" for sign, limit in ((">", clause.above), ("<", clause.below)) if limit is not None
    ]
    marks = ", ".join(decision.marks) or NONE
    return decision.verdict, *decision.here, ", ".join(limits), clause.number, clause.run, marks
