"""Steps to the target over the batch: where larger batches stop saving steps (Shallue et al. 2019)."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from hpcdl.analysis.run.record import Key, Record, judge_methods
from hpcdl.analysis.statistics.estimates import NOTHING, Interval
from hpcdl.report.formats.cells import NONE, bounded, digits, interval, percent, whole
from hpcdl.report.formats.document import Axis, Lines, Point, Section
from hpcdl.report.formats.tables import Column
from hpcdl.report.run.declaration import LOWEST, METHOD, Answer, Declaration, curves, median, one_table
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Row, Scale, changes_of_accuracy
from hpcdl.report.run.names import Names, capital, in_words, points_in_words, several, where

HALF: Final = 0.5
"""Efficiency in steps at the critical batch (McCandlish et al. 2018, equation 5.1)."""


@dataclass(frozen=True)
class Batch(Row):
    """Trainings of a method with one batch."""

    images: int = 0
    """Of a step of all ranks."""
    efficiency: Interval = NOTHING
    """In steps, see :func:`efficiencies`."""

    @property
    def steps(self) -> Interval:
        """Steps to the target, median over seeds; infinite if most seeds missed it.

        Bounds: the evaluation before the target, least of all seeds, and that at the target, largest of all.
        """
        at = [record.samples_to_target or math.inf for record in self.scale.records]
        before = min(record.samples_before_target or 0 for record in self.scale.records)
        middle, low, high = (value / self.images for value in (float(np.median(at)), before, max(at)))
        return Interval(middle, max(low, 1.0), high)

    @property
    def epochs(self) -> float:
        """Epochs to the target, median over seeds; infinite if most seeds missed it."""
        return float(np.median([record.epochs_to_target or math.inf for record in self.scale.records]))

    @property
    def missed(self) -> int:
        """Seeds that missed the target."""
        return sum(not record.samples_to_target for record in self.scale.records)

    @property
    def sharpness(self) -> Interval:
        """Largest eigenvalue, median over seeds and their range; not a number if it is unknown."""
        values = self.scale.values(Record.sharpness)
        return Interval(float(np.median(values)), min(values), max(values)) if values else NOTHING

    @property
    def gap(self) -> float | None:
        """Training accuracy less final accuracy, median over seeds; None if it is unknown."""
        pairs = [(record.train_accuracy, record.final_accuracy) for record in self.scale.records]
        gaps = [train - final for train, final in pairs if train is not None and final is not None]
        return float(np.median(gaps)) if gaps else None


def _by_batch(records: Iterable[Record]) -> list[dict[int, list[Record]]]:
    """Return the records of each problem and method by batch, ascending; those without a batch are left out."""
    groups: dict[Key, dict[int, list[Record]]] = {}
    for record in records:
        if record.global_batch:
            problem = (record.model, record.dataset, record.ranks, record.target_accuracy)
            batches = groups.setdefault((problem, record.conditions(), record.method), {})
            batches.setdefault(record.global_batch, []).append(record)
    return [dict(sorted(batches.items())) for batches in groups.values()]


def methods_of(findings: Findings) -> dict[str, list[Batch]]:
    """Return three or more batches of each method, ascending, of trainings with a target; all else is equal."""
    timed = _by_batch(record for record in findings.records if record.kind == "train" and record.target_accuracy)
    compared = [batches for batches in timed if len(batches) > 2]
    names = Names(records[0] for batches in compared for records in batches.values())
    methods: dict[str, list[Batch]] = {}
    for batches in compared:
        name = names(next(iter(batches.values()))[0])
        methods.setdefault(name, []).extend(
            Batch(name, Scale(same), images=images) for images, same in batches.items()
        )
    return {name: efficiencies(batches) for name, batches in methods.items()}


def efficiencies(batches: Sequence[Batch]) -> list[Batch]:
    """Return the batches with their efficiency: steps of perfect scaling from the smallest batch / steps needed.

    The smallest batch is the first that reached the target; smaller ones are not a number. Larger ones that missed
    the target are 0. Bounds are those of the steps.
    """
    samples = [Interval(*(batch.images * steps for steps in batch.steps)) for batch in batches]
    base = next((number for number, images in enumerate(samples) if math.isfinite(images.value)), len(samples))
    larger = [
        Interval(least.value / images.value, least.low / images.high, least.high / images.low)
        for least in samples[base : base + 1]
        for images in samples[base + 1 :]
    ]
    known = [*[NOTHING] * base, *[Interval(1.0, 1.0, 1.0)] * (base < len(samples)), *larger]
    return [replace(batch, efficiency=efficiency) for batch, efficiency in zip(batches, known, strict=True)]


def knee(batches: Sequence[Batch]) -> Interval:
    """Return the batch at which the efficiency in steps falls to a half; infinite if it does not.

    If the next batch misses the target, it is the last one before. Bounds are those of the efficiencies.
    """
    curves = zip(*(batch.efficiency for batch in batches), strict=True)
    return Interval(*(_knee([batch.images for batch in batches], curve) for curve in curves))


def _knee(images: Sequence[int], efficiency: Sequence[float]) -> float:
    points = [point for point in zip(images, efficiency, strict=True) if not math.isnan(point[1])]
    for (low, above), (high, below) in pairwise(points):
        if below <= HALF:
            share = math.log(above / HALF) / math.log(above / below) if below else 0.0
            return float(low * (high / low) ** share)
    return math.inf if points else math.nan


NOTE: Final = (
    "Steps to the target are medians over seeds. Their range begins at the evaluation before the target (fewest "
    "steps of all seeds) and ends at the evaluation at the target (most steps). Missed: seeds that missed the "
    "target. Efficiency: steps with perfect scaling / steps needed. Perfect scaling: twice the batch needs half "
    "the steps, from the smallest batch that reached the target on. Train - test: accuracy on a sample of "
    "training images minus final accuracy. Sharpness: largest eigenvalue of the loss's Hessian on this sample; "
    "Keskar et al. 2017 expect that it grows with the batch."
)


def _step_bounds(batch: Batch) -> str:
    _, low, high = batch.steps
    return interval(low, high) if math.isfinite(high) else f"> {digits(low)}"


def _efficiency_bounds(batch: Batch) -> str:
    _, low, high = batch.efficiency
    return interval(low, high) if high > 0 else NONE


COLUMNS: Final[tuple[Column[Batch], ...]] = (
    METHOD,
    Column("batch", lambda batch: str(batch.images)),
    Column("steps", lambda batch: digits(batch.steps.value) if math.isfinite(batch.steps.value) else "missed"),
    Column("range of steps", _step_bounds),
    Column("missed", lambda batch: str(batch.missed or NONE)),
    Column(
        "efficiency",
        lambda batch: digits(value) if (value := batch.efficiency.value) > 0 else NONE,
        importance="answer",
    ),
    Column("range of efficiency", _efficiency_bounds, importance="answer"),
    Column("epochs", lambda batch: digits(batch.epochs) if math.isfinite(batch.epochs) else "missed"),
    Column("final accuracy", lambda batch: percent(batch.scale.median(Record.final_accuracy))),
    Column("train - test", lambda batch: percent(batch.gap)),
    median(Record.sharpness),
    median(Record.smallest_eigenvalue, importance="detail"),
    median(Record.noise_scale_q4),
    Column("tuned", lambda batch: str(batch.scale.record.tuned or NONE), importance="detail"),
)


def page(findings: Findings) -> Section:
    """Return a table of all methods and batches."""
    batches = [batch for batches in methods_of(findings).values() for batch in batches]
    return one_table("Large batches", COLUMNS, batches, NOTE)


def answer(findings: Findings) -> Answer | None:
    """Return up to which batch each method saves steps, the largest first, and what large batches cost."""
    methods = methods_of(findings)
    ordered = sorted(methods, key=lambda name: -np.nan_to_num(knee(methods[name]).value, nan=-1))
    if not ordered:
        return None
    words = [f" ({in_words(name, methods[name][0].scale.record)})" for name in ordered]
    known = list(zip(map(methods.__getitem__, ordered), words if len(words) > 1 else [""], strict=True))
    headline, *others = (_saving(*method) for method in known)
    costs, noise = ([line for method in known for line in lines(*method)] for lines in (_accuracy, _noise))
    first, *knees = (knee(batches) for batches, _ in known)
    if knees and all(not first.low > other.high for other in knees):  # also of a bound that is not known
        costs.insert(0, "Not decided which method saves most steps: the intervals of all methods overlap.")
    basis = [record for batches, _ in known for batch in batches for record in batch.scale.records]
    return Answer(headline, [*costs, *others, *noise], basis)


def _saving(batches: Sequence[Batch], method: str) -> str:
    """Return up to which batch training needs at most twice the steps of perfect scaling."""
    at, largest = knee(batches), batches[-1].images
    high = f"{at.high:.0f}" if math.isfinite(at.high) else f"more than {largest}"
    bounds = f"{at.low:.0f} to {high}" if math.isfinite(at.low) else high
    need = f"need at most twice the steps of perfect scaling{method}"
    after = next((batch for batch in batches if batch.images > at.value), batches[-1])
    if math.isnan(at.value):
        return f"Training misses the target with every batch{method}."
    if math.isinf(at.value):
        return f"Batches of up to {largest} images, the most tested, {need} (limit: {bounds})."
    if math.isinf(at.high) and at.low < batches[1].images:
        return f"Not decided which batches {need}: the limit is {bounds} images."
    if math.isinf(after.steps.value):
        return f"Batches of up to {at.value:.0f} images {need}; training with {after.images} misses the target."
    return f"Batches of up to {at.value:.0f} images ({bounds}) {need}."


def _accuracy(batches: Sequence[Batch], method: str) -> list[str]:
    """Return the difference of final accuracies between the largest and the smallest batch, and missed targets."""
    lines, (change,) = list[str](), changes_of_accuracy(batches[0].scale, [batches[-1].scale])
    if math.isfinite(change.low):
        sizes = f"From batches of {batches[0].images} to batches of {batches[-1].images} images"
        lines.append(f"{sizes} the final accuracy changes by {points_in_words(change)}{method}.")
    if missed := [str(batch.images) for batch in batches if batch.missed]:
        lines.append(f"At least one seed misses the target with batches of {several(missed)} images{method}.")
    return lines


def _noise(batches: Sequence[Batch], method: str) -> list[str]:
    """Return whether the noise scale is near the batch at which the efficiency in steps is a half."""
    at, noise = knee(batches).value, Record.noise_scale_q4
    scales = [batch.scale.median(noise) for batch in batches if not batch.missed]
    if not math.isfinite(at) or not any(scales):
        return []
    scale = float(np.median([scale for scale in scales if scale]))
    near = "within" if max(scale / at, at / scale) <= 2 else "not within"
    return [f"The gradient noise scale, {digits(scale)} images, is {near} a factor of 2 of {at:.0f}{method}."]


def charts(findings: Findings) -> list[Lines]:
    """Return over the batch: steps, with the line of perfect scaling, and the largest eigenvalue at the end."""

    def over_batch(values: Callable[[Batch], Interval]) -> dict[str, list[Point]]:
        return {
            name: [Point(each.images, *value) for each in batches if math.isfinite((value := values(each)).high)]
            for name, batches in methods_of(findings).items()
        }

    axis, steps = Axis("batch", whole, 2), over_batch(lambda batch: batch.steps)
    note = (
        "Medians over seeds, with bounds as in the table. Perfect scaling: twice the batch needs half the steps."
    )
    base = next((points[0] for points in steps.values() if len(points) > 1), Point(1, 1))
    perfect = {"perfect scaling": lambda images: base.y * base.x / images}
    title, y = "Steps to the target over the batch", Axis("steps", digits, 2)
    made = curves(title, (axis, y), steps, note, best=LOWEST, references=perfect)
    note = "Largest eigenvalue of the Hessian at the end: medians over seeds, bars are their range."
    sharpness = over_batch(lambda batch: batch.sharpness)
    return [*made, *curves("Sharpness over the batch", (axis, Axis("sharpness", digits, 10)), sharpness, note)]


SECTION: Final = Declaration(26, page, rows=40, answer=answer, figures=(charts,))


def sharpness_answer(findings: Findings) -> Answer | None:
    """Return how sharp the largest batch ends / the smallest, and how many trainings end at saddle points."""
    known = [record for record in findings.records if record.sharpness and record.global_batch]
    groups = [[*group.values()] for group in _by_batch(known)]
    ends = [(group[0], group[-1]) for group in groups if len(group) > 1 and min(map(len, group)) > 1]
    lines = [_sharper(*pair) for pair in sorted(ends, key=lambda pair: not _equal_steps(*pair))]
    if not lines:
        return None
    pairs = [(record.smallest_eigenvalue or 0.0, record.sharpness or 1.0) for record in known]
    shares = [-least / most for least, most in pairs if least < 0]
    saddles = f"At the end of {len(shares)} of {len(pairs)} trainings the smallest eigenvalue is negative"
    lines.append(
        f"{saddles}, as at a saddle point; its size is at most {percent(max(shares, default=0))} of the sharpness."
    )
    return Answer(lines[0], lines[1:], known)


def _equal_steps(small: Sequence[Record], large: Sequence[Record]) -> bool:
    return small[0].steps == large[0].steps


def _sharper(small: list[Record], large: list[Record]) -> str:
    """Return the sharpness of the largest batch / the smallest one's, over their seeds."""
    ((verdict,),) = judge_methods([[large, small]], Record.sharpness)
    fewer = f"epochs, so {digits((small[0].steps or 1) / (large[0].steps or 1))} times fewer steps,"
    equal = "steps" if _equal_steps(small, large) else fewer
    doubt = "Not decided which batch ends sharper: " if verdict.reason else ""
    ends = f"end {bounded(*verdict.size)} times as sharp as batches of {small[0].global_batch}"
    text = f"{doubt}after equal {equal} batches of {large[0].global_batch} images {ends}"
    return f"{capital(text)}{where(small[0])}."


SHARPNESS: Final = Declaration(27, lambda _: Section("Sharpness"), answer=sharpness_answer, name="sharpness")
