"""Steps to the target over the batch: where larger batches stop saving steps (Shallue et al. 2019)."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.estimates import NOTHING, Interval
from hpcdl.report.formats.cells import NONE, digits, interval, whole
from hpcdl.report.formats.document import Axis, Column, Lines, Point, Section, Series, table
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.contents import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Scale
from hpcdl.report.run.method_names import Names
from hpcdl.trace.quantity import Quantity

LEAST: Final = 3
"""Batches of a method, at least."""
HALF: Final = 0.5
"""Efficiency in steps at the critical batch (McCandlish et al. 2018, equation 5.1)."""
FACTOR: Final = 2.0
"""Largest ratio of a noise scale and a critical batch that agree."""


class Batch(NamedTuple):
    """Trainings of a method with one batch, all seeds."""

    images: int
    records: Sequence[Record]

    @property
    def steps(self) -> Interval:
        """Steps to the target, median over seeds; infinite if most seeds missed it.

        Bounds: the evaluation before the target, least of all seeds, and that at the target, largest of all.
        """
        at = [record.samples_to_target or math.inf for record in self.records]
        before = min(record.samples_before_target or 0 for record in self.records)
        middle, low, high = (value / self.images for value in (float(np.median(at)), before, max(at)))
        return Interval(middle, max(low, 1.0), high)

    @property
    def missed(self) -> int:
        """Seeds that missed the target."""
        return sum(not record.samples_to_target for record in self.records)

    def median(self, quantity: Quantity[Any]) -> float | None:
        """Return the median over seeds; None if it is unknown."""
        return Scale([*self.records]).median(quantity)

    @property
    def sharpness(self) -> Interval | None:
        """Largest eigenvalue, median over seeds and their range; None if it is unknown."""
        known = [record.sharpness for record in self.records if record.sharpness is not None]
        return Interval(float(np.median(known)), min(known), max(known)) if known else None

    @property
    def gap(self) -> float | None:
        """Training accuracy less final accuracy, median over seeds; None if it is unknown."""
        pairs = [(record.train_accuracy, record.final_accuracy) for record in self.records]
        gaps = [train - final for train, final in pairs if train is not None and final is not None]
        return float(np.median(gaps)) if gaps else None


def _methods(findings: Findings) -> dict[str, list[Batch]]:
    """Return the batches of each method, ascending, of trainings with a target; all else is equal."""
    groups: dict[object, dict[int, list[Record]]] = {}
    for record in findings.records:
        if record.kind == "train" and record.target_accuracy and record.global_batch:
            own = (record.model, record.dataset, record.ranks, record.target_accuracy)
            by_batch = groups.setdefault((own, record.conditions(), record.method), {})
            by_batch.setdefault(int(record.global_batch), []).append(record)
    kept = [group for group in groups.values() if len(group) >= LEAST]
    name = Names(records[0] for group in kept for records in group.values())
    found: dict[str, list[Batch]] = {}
    for group in kept:
        batches = [Batch(images, group[images]) for images in sorted(group)]
        found.setdefault(name(batches[0].records[0]), []).extend(batches)
    return found


def efficiencies(batches: Sequence[Batch]) -> list[Interval]:
    """Return by batch the steps of perfect scaling from the smallest batch, by those that were needed.

    The smallest batch is the first that reached the target; smaller ones are not a number. Larger ones that missed
    the target are 0. Bounds are those of the steps.
    """
    known = [Interval(*(batch.images * steps for steps in batch.steps)) for batch in batches]
    base = next((number for number, images in enumerate(known) if math.isfinite(images.value)), len(known))
    others = [
        Interval(known[base].value / images.value, known[base].low / images.high, known[base].high / images.low)
        for images in known[base + 1 :]
    ]
    return [*[NOTHING] * base, *[Interval(1.0, 1.0, 1.0)] * (base < len(known)), *others]


def knee(batches: Sequence[Batch]) -> Interval:
    """Return the batch at which the efficiency in steps falls to a half; infinite if it does not.

    If the next batch misses the target, it is the last one before. Bounds are those of the efficiencies.
    """
    curves = zip(*efficiencies(batches), strict=True)
    return Interval(*(_knee([batch.images for batch in batches], curve) for curve in curves))


def _knee(images: Sequence[int], efficiency: Sequence[float]) -> float:
    points = [point for point in zip(images, efficiency, strict=True) if not math.isnan(point[1])]
    for (low, above), (high, below) in pairwise(points):
        if below <= HALF:
            share = math.log(above / HALF) / math.log(above / below) if below else 0.0
            return float(low * (high / low) ** share)
    return math.inf if points else math.nan


NOTE: Final = (
    "Steps to the target, medians over seeds; their bounds are the evaluation before the target, least of all "
    "seeds, and that at the target, largest of all. Missed: seeds that missed the target. Efficiency in steps: "
    "those of perfect scaling from the smallest batch that reached the target, by those that were needed. "
    "Train - test: accuracy on a sample of training images, less the final accuracy. Sharpness: largest "
    "eigenvalue of the Hessian of the loss on the sample; Keskar et al. 2017 expect it to grow with the batch."
)


class Tried(NamedTuple):
    """A batch of a method, and its efficiency in steps."""

    method: str
    batch: Batch
    efficiency: Interval


def _steps(tried: Tried) -> str:
    return digits(tried.batch.steps.value) if math.isfinite(tried.batch.steps.value) else "missed"


def _step_bounds(tried: Tried) -> str:
    _, low, high = tried.batch.steps
    return interval(low, high) if math.isfinite(high) else f"> {digits(low)}"


def _efficiency_bounds(tried: Tried) -> str:
    _, low, high = tried.efficiency
    return interval(low, high) if high > 0 else NONE


def _median(quantity: Quantity[Any]) -> Column[Tried]:
    return Column(quantity.heading, lambda tried: digits(tried.batch.median(quantity)))


COLUMNS: Final = (
    Column[Tried]("method", lambda tried: tried.method),
    Column[Tried]("batch", lambda tried: str(tried.batch.images)),
    Column("steps", _steps),
    Column("bounds", _step_bounds),
    Column[Tried]("missed", lambda tried: str(tried.batch.missed or NONE)),
    Column[Tried](
        "efficiency in steps", lambda tried: digits(tried.efficiency.value) if tried.efficiency.value > 0 else NONE
    ),
    Column("its bounds", _efficiency_bounds),
    _median(Record.epochs_to_target),
    _median(Record.final_accuracy),
    Column[Tried]("train - test", lambda tried: digits(tried.batch.gap)),
    _median(Record.sharpness),
    _median(Record.smallest_eigenvalue),
    _median(Record.noise_scale_q4),
    Column[Tried]("tuned", lambda tried: str(tried.batch.records[0].tuned or NONE)),
)


def page(findings: Findings) -> Section:
    """Return a table of all methods and batches."""
    tried = [
        Tried(name, *pair)
        for name, batches in _methods(findings).items()
        for pair in zip(batches, efficiencies(batches), strict=True)
    ]
    return Section("Large batches", tables=[table(COLUMNS, tried, notes=[NOTE])] if tried else [])


def verdicts(findings: Findings) -> list[Verdict]:
    """Return up to which batch each method saves steps, the largest first."""
    known = [_verdict(name, batches) for name, batches in _methods(findings).items()]
    return sorted(known, key=lambda verdict: -verdict.size.value if verdict.word != "none" else 0.0)


def _verdict(name: str, batches: Sequence[Batch]) -> Verdict:
    at, largest = knee(batches), batches[-1].images
    after = next((batch for batch in batches if batch.images > at.value), batches[-1])
    end = "half" if math.isfinite(after.steps.value) else "missed"
    missed = ", ".join(str(batch.images) for batch in batches if batch.missed)
    high = f"{at.high:.0f}" if math.isfinite(at.high) else f"beyond {largest}"
    if math.isfinite(at.value) and math.isinf(at.high) and at.low < batches[1].images:
        end = "open"
    return Verdict(
        topic="batches",
        word="none" if math.isnan(at.value) else "all" if math.isinf(at.value) else end,
        question="Up to which batch does a larger one save steps?",
        case=name,
        size=at,
        launches=[len(batch.records) for batch in batches],
        marks=["simulated"] if batches[0].records[0].network else [],
        cause=f"Batches that miss the target with a seed or all: {missed}." if missed else "",
        facts={
            "batch": f"{min(at.value, largest):.0f}",
            "bounds": f"{at.low:.0f} to {high}" if math.isfinite(at.low) else high,
            "next": str(after.images),
        },
    )


def _noise(findings: Findings) -> list[Verdict]:
    """Return for which methods the noise scale is near the batch at which the efficiency in steps is a half."""
    found: dict[str, list[str]] = {}
    for name, batches in _methods(findings).items():
        at, scales = (
            knee(batches).value,
            [batch.median(Record.noise_scale_q4) for batch in batches if not batch.missed],
        )
        known = [scale for scale in scales if scale]
        if math.isfinite(at) and known:
            scale = float(np.median(known))
            word = "noise agrees" if max(scale / at, at / scale) <= FACTOR else "noise differs"
            found.setdefault(word, []).append(f"{name} ({digits(scale)})")
    facts = {"factor": f"{FACTOR:g}"}
    return [
        Verdict(topic="batches", word=word, case="; ".join(names), facts=facts) for word, names in found.items()
    ]


def answer(findings: Findings) -> Answer | None:
    """Return up to which batch each method saves steps."""
    known = verdicts(findings)
    if not known:
        return None
    lines = [verdict.sentence for verdict in (*known, *_noise(findings))]
    saving = [verdict for verdict in known if verdict.word != "none"]
    if len(saving) < 2:
        return Answer(lines[0], lines[1:])
    first, last = saving[0], saving[-1]
    most, least = (f"{one.facts['batch']} images ({one.facts['bounds']}) with {one.case}" for one in (first, last))
    overlap = not first.size.low > last.size.high  # also of a bound that is not known
    facts = {"most": most, "least": least, "apart": ", which these bounds do not distinguish" if overlap else ""}
    headline = Verdict(topic="batches", word="methods", marks=saving[0].marks, facts=facts).sentence
    return Answer(headline, lines)


def charts(findings: Findings) -> list[Lines]:
    """Return steps over batch, with the line of perfect scaling."""
    found = _methods(findings)
    series = [
        Series(
            name, [Point(batch.images, *steps) for batch in batches if math.isfinite((steps := batch.steps).high)]
        )
        for name, batches in found.items()
    ]
    series = [line for line in series if len(line.points) > 1]
    if not series:
        return []
    first, last = series[0].points[0], max(point.x for line in series for point in line.points)
    perfect = [first, Point(last, first.y * first.x / last)]
    axis = Axis("batch", whole, 2, sorted({point.x for line in series for point in line.points}))
    note = "Medians over seeds, with bounds as in the table. Perfect scaling: twice the batch, half the steps."
    lines = [*series, Series("perfect scaling", perfect, "reference")]
    return [Lines("Steps to the target over the batch", axis, Axis("steps", digits, 2), lines, note)]


def sharpness(findings: Findings) -> list[Lines]:
    """Return the largest eigenvalue at the end over the batch, where it is known."""
    series = [
        Series(name, [Point(batch.images, *among) for batch in batches if (among := batch.sharpness)])
        for name, batches in _methods(findings).items()
    ]
    series = [line for line in series if len(line.points) > 1]
    axis = Axis("batch", whole, 2, sorted({point.x for line in series for point in line.points}))
    note = "Largest eigenvalue of the Hessian at the end: medians over seeds, bars are their range."
    return [Lines("Sharpness over the batch", axis, Axis("sharpness", digits, 10), series, note)] if series else []


SECTION = Declaration(26, page, rows=40, answer=answer, figures=(charts, sharpness))
