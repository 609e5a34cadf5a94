"""Claims of the sources, decided by runs: ``hpcdl/report/claims.toml`` has the claims, and describes its keys."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from hpcdl.report.formats.cells import NONE, digits, plural
from hpcdl.report.formats.document import Document, Section, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.run.scaling import Record

FILE: Final = Path(__file__).parents[1] / "claims.toml"
HOLDS, FAILS, OPEN, ABSENT = "holds", "does not hold here", "undecided", "no run"
EXPECTED: Final = {"holds": HOLDS, "fails": FAILS}
LUCK: Final = "final_accuracy"
"""Field that depends on the seed: one seed decides nothing."""
BOUNDS: Final = {"time_p50_seconds": ("time_p50_low_seconds", "time_p50_high_seconds")}
"""Fields of an interval that are not named after their field."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim, and the records that decide it."""

    text: str
    source: str
    run: str
    """Folder of the run."""
    field: str
    case: Mapping[str, Any]
    by: Mapping[str, Any] | None = None
    minus: Mapping[str, Any] | None = None
    above: float | None = None
    below: float | None = None
    here: str = "holds"


@dataclass(frozen=True)
class Decision:
    """A claim with its number here."""

    claim: Claim
    value: tuple[float, float, float] | None
    """Median and bounds; None without records."""

    @property
    def verdict(self) -> str:
        """One of :data:`HOLDS`, :data:`FAILS`, :data:`OPEN`, :data:`ABSENT`."""
        if self.value is None:
            return ABSENT
        _, low, high = self.value
        above, below = self.claim.above, self.claim.below
        if (above is None or low > above) and (below is None or high < below):
            return HOLDS
        wrong = (above is not None and high < above) or (below is not None and low > below)
        return FAILS if wrong else OPEN

    @property
    def is_surprising(self) -> bool:
        """True if the verdict is the opposite of what the claim says of these runs."""
        return self.verdict in EXPECTED.values() and self.verdict != EXPECTED[self.claim.here]


def claims() -> list[Claim]:
    """Return the claims of the package."""
    return [Claim(**table) for table in tomllib.loads(FILE.read_text(encoding="utf-8"))["claim"]]


def decide(claim: Claim, records: Sequence[Record]) -> Decision:
    """Return the decision by the records of the claim's run."""
    value = _value(claim.field, claim.case, records)
    other = claim.by or claim.minus
    if other is None or value is None:
        return Decision(claim, value)
    second = _value(claim.field, other, records)
    if second is None or (claim.by and min(second) <= 0):
        return Decision(claim, None)
    (middle, low, high), (at, least, most) = value, second
    ratio = (middle / at, low / most, high / least) if claim.by else (middle - at, low - most, high - least)
    return Decision(claim, ratio)


def _value(field: str, case: Mapping[str, Any], records: Sequence[Record]) -> tuple[float, float, float] | None:
    """Return the median over the records of a case, and the ends of their intervals or of their range."""
    alike = [
        record
        for record in records
        if not record.get("error") and all(str(record.get(key)) == str(case[key]) for key in case)
    ]
    numbers = [(record, _number(record, field)) for record in alike]
    known = [(number, *_bounds(record, field, number)) for record, number in numbers if number is not None]
    if not known:
        return None
    values, lows, highs = zip(*known, strict=True)
    if field == LUCK and len(values) == 1:
        return values[0], -math.inf, math.inf
    return median(values), min(lows), max(highs)


def _number(record: Record, field: str) -> float | None:
    if field == "bytes_per_image":
        return float(record["bytes_sent_per_rank"] or 0) / float(record["global_batch"])
    value = record.get(field)
    return None if value is None else float(value)


def _bounds(record: Record, field: str, value: float) -> tuple[float, float]:
    """Return the bounds of a record's interval; the value twice if it has none."""
    low, high = (record.get(name) for name in BOUNDS.get(field, (f"{field}_low", f"{field}_high")))
    return (value, value) if low is None or high is None else (float(low), float(high))


def document(decisions: Sequence[Decision]) -> Document:
    """Return the decisions as a document."""
    verdicts = [decision.verdict for decision in decisions]
    decided = verdicts.count(HOLDS) + verdicts.count(FAILS)
    line = f"{decided} of {plural(len(decisions), 'claim')} are decided: {verdicts.count(HOLDS)} hold"
    line += f", {verdicts.count(FAILS)} do not hold here." if FAILS in verdicts else "."
    points = [f"OTHERWISE THAN BEFORE: {d.claim.text}: {d.verdict}" for d in decisions if d.is_surprising]
    header = ("claim", "source", "verdict", "here", "95 % or range", "limit", "number", "run")
    rows = [_row(decision) for decision in decisions]
    note = (
        "A claim holds if the whole interval of its number is on the claimed side of the limit. Intervals are "
        "those of the runs' reports; without one the range over seeds. A simulated number has none. Accuracies of "
        "one seed decide nothing."
    )
    table = Table("", header, rows, 3, [note])
    return Document("hpcdl: claims", [Section("Claims", [line], points, [table])])


def _row(decision: Decision) -> tuple[str, ...]:
    claim, value = decision.claim, decision.value
    limits = [f"{sign} {limit:g}" for sign, limit in ((">", claim.above), ("<", claim.below)) if limit is not None]
    what = "ratio of " if claim.by else "difference of " if claim.minus else ""
    here, bounds = NONE, NONE
    if value is not None:
        here = digits(value[0])
        bounds = NONE if value[1] == value[2] else f"{digits(value[1])} to {digits(value[2])}"
        bounds = bounds if math.isfinite(value[1]) else "one seed"
    number = what + claim.field.replace("_", " ")
    return claim.text, claim.source, decision.verdict, here, bounds, ", ".join(limits), number, claim.run
