"""Figures and claims of papers, beside ours.

Figures: data of ``hpcdl/papers``, matched with the cases of a suite. Claims: ``hpcdl/report/claims.toml``, which
describes its keys; runs decide them.

A paper's file has its ``source``, ``notes``, ``[[volumes]]`` of networks at batch 1024, and ``[[results]]``: a
``quantity`` of :data:`QUANTITIES`, the ``case`` (fields of a record, as texts), and the published ``values`` by
ranks, or only the ``ranks`` for what the paper did not try. A figure is reproduced if it is within ``tolerance``.
"""

from __future__ import annotations

import inspect
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from hpcdl import registry
from hpcdl.nn.volumes import volumes
from hpcdl.report.formats.cells import NONE, digits, plural
from hpcdl.report.formats.document import Document, Section, Table
from hpcdl.suite import PAPERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hpcdl.analysis.run.scaling import Record


TITLE: Final = "Published and here"
HEADER: Final = ("what", "quantity", "ranks", "published", "here", "error", "reproduced", "place in the paper")
TOLERANCE: Final = 0.25
IMAGES: Final = 1_281_167
"""Images of an epoch of ImageNet."""
VOLUMES: Final = {
    "weight_bytes": ("|W|, MB", 1e6),
    "data_bytes": ("|D|, MB", 1e6),
    "forward_backward_flop": ("TFLOP", 1e12),
}
SHAPE: Final = (224, 224, 3)
BATCH: Final = 1024


def _time(record: Record) -> float:
    """Return the time of a step or an operation, predicted where it is a prediction (s)."""
    known = (record.get(name) for name in ("predicted_seconds", "step_seconds", "time_p50_seconds"))
    if record["kind"] == "collective" and record.get("time_p50_seconds"):
        return float(record["time_p50_seconds"])
    return next(float(value) for value in known if value)


def _images_a_second(record: Record) -> float:
    return float(record["global_batch"]) / _time(record)


QUANTITIES: Final[dict[str, Callable[[Record, Record, float], float]]] = {
    "operations a second": lambda record, _base, _epochs: 1 / _time(record),
    "images a second": lambda record, _base, _epochs: _images_a_second(record),
    "speed-up per image": lambda record, base, _epochs: _images_a_second(record) / _images_a_second(base),
    "hours": lambda record, _base, epochs: epochs * IMAGES / _images_a_second(record) / 3600,
}
"""Quantity of a record, of the record of the same network on one rank, and of a number of epochs."""


@dataclass(frozen=True)
class Figure:
    """A figure of a paper and ours."""

    name: str
    quantity: str
    ranks: int | None
    published: float | None
    """None: the paper did not try it."""
    here: float
    tolerance: float
    place: str

    @property
    def reproduced(self) -> bool | None:
        """True if ours is within the tolerance; None without a published figure."""
        return None if self.published is None else abs(self.here / self.published - 1) <= self.tolerance

    @property
    def cells(self) -> tuple[str, ...]:
        """A row of :data:`HEADER`."""
        words = (self.name, self.quantity, NONE if self.ranks is None else str(self.ranks))
        if self.published is None:
            return *words, NONE, digits(self.here), NONE, NONE, self.place
        error = f"{100 * (self.here / self.published - 1):+.0f} %"
        verdict = f"{'yes' if self.reproduced else 'no'} (within {100 * self.tolerance:.0f} %)"
        return *words, digits(self.published), digits(self.here), error, verdict, self.place


def _data(paper: str) -> dict[str, Any]:
    return tomllib.loads((PAPERS / f"{paper}.toml").read_text(encoding="utf-8"))


def figures(paper: str, records: Sequence[Record]) -> list[Figure]:
    """Return the figures of ``paper`` that ``records`` have a case for, and those of its volumes."""
    data = _data(paper)
    known = [figure for table in data.get("volumes", ()) for figure in _volumes(table)]
    for table in data.get("results", ()):
        known += _results(table, [record for record in records if not record.get("error")])
    return known


def _volumes(table: Mapping[str, Any]) -> Iterator[Figure]:
    model = registry.find("models", table["name"])
    classes = list(inspect.signature(model).parameters.values())[1].default
    sizes = volumes(model(SHAPE, classes, **table.get("settings", {})), SHAPE, BATCH)
    for field, value in table["value"].items():
        quantity, unit = VOLUMES[field]
        here = getattr(sizes, field) / unit
        yield Figure(table["name"], quantity, None, value / unit, here, 0.02, "table of volumes, batch 1024")


def _results(table: Mapping[str, Any], records: Sequence[Record]) -> Iterator[Figure]:
    case = table["case"]
    alike = [record for record in records if all(str(record.get(key)) == str(case[key]) for key in case)]
    single = [record for record in records if record["ranks"] == 1 and record.get("model") == case.get("model")]
    by_ranks = {record["ranks"]: record for record in (*single, *alike)}
    values = {int(ranks): value for ranks, value in table.get("values", {}).items()}
    for ranks in values or table["ranks"]:
        if ranks not in by_ranks or (table["quantity"] == "speed-up per image" and not single):
            continue
        epochs = table.get("epochs", {}).get(str(ranks), 0)
        here = QUANTITIES[table["quantity"]](by_ranks[ranks], by_ranks.get(1, by_ranks[ranks]), epochs)
        tolerance, place = table.get("tolerance", TOLERANCE), table.get("place", "not in the paper")
        yield Figure(table["name"], table["quantity"], ranks, values.get(ranks), here, tolerance, place)


def headline(papers: Sequence[str], records: Sequence[Record]) -> str:
    """Return how many figures of the papers are reproduced; empty if there are none."""
    known = [figure.reproduced for paper in papers for figure in figures(paper, records)]
    judged = known.count(True) + known.count(False)
    return (
        f"{known.count(True)} of {judged} published figures are reproduced ({', '.join(papers)})."
        if judged
        else ""
    )


def section(papers: Sequence[str], records: Sequence[Record]) -> Section:
    """Return one table per paper: published, here, their ratio; the largest number of ranks first."""
    tables = []
    for paper in papers:
        known, data = sorted(figures(paper, records), key=lambda figure: -(figure.ranks or 0)), _data(paper)
        rows, title = [figure.cells for figure in known], f"{paper}: {data['source']}"
        tables += [Table(title, HEADER, rows, 2, data.get("notes", []), "most ranks first")] if rows else []
    return Section(TITLE, tables=tables)


FILE: Final = Path(__file__).parent / "claims.toml"
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
