"""Steps to the target over the batch: where larger batches stop saving steps (Shallue et al. 2019)."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.record import Key, Record
from hpcdl.analysis.statistics.estimates import NOTHING, Interval, mean_interval
from hpcdl.report.formats.cells import NONE, digits, interval, percent, whole
from hpcdl.report.formats.document import Axis, Lines, Point, Section
from hpcdl.report.formats.tables import Column, table
from hpcdl.report.run.columns import METHOD, median
from hpcdl.report.run.curves import LOWEST, curves
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Scale
from hpcdl.report.run.literature import capital, in_words, points_in_words, problem_words
from hpcdl.report.run.method_names import Names, several

LEAST: Final = 3
"""Batches of a method, at least."""
HALF: Final = 0.5
"""Efficiency in steps at the critical batch (McCandlish et al. 2018, equation 5.1)."""
FACTOR: Final = 2.0
"""Largest ratio of a noise scale and a critical batch that agree."""


class Batch(NamedTuple):
    """Trainings of a method with one batch."""

    name: str
    scale: Scale
    efficiency: Interval = NOTHING
    """In steps, see :func:`efficiencies`."""

    @property
    def images(self) -> int:
        """Images of a step of all ranks."""
        return int(self.scale.record.global_batch or 0)

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


def methods_of(findings: Findings) -> dict[str, list[Batch]]:
    """Return the batches of each method, ascending, of trainings with a target; all else is equal."""
    groups: dict[Key, dict[int, list[Record]]] = {}
    for record in findings.records:
        if record.kind == "train" and record.target_accuracy and record.global_batch:
            problem = (record.model, record.dataset, record.ranks, record.target_accuracy)
            by_batch = groups.setdefault((problem, record.conditions(), record.method), {})
            by_batch.setdefault(record.global_batch, []).append(record)
    compared = [group for group in groups.values() if len(group) >= LEAST]
    names = Names(records[0] for group in compared for records in group.values())
    methods: dict[str, list[Batch]] = {}
    for group in compared:
        scales = [Scale(group[images]) for images in sorted(group)]
        name = names(scales[0].record)
        methods.setdefault(name, []).extend(Batch(name, scale) for scale in scales)
    return {name: efficiencies(batches) for name, batches in methods.items()}


def efficiencies(batches: Sequence[Batch]) -> list[Batch]:
    """Return the batches with their efficiency: steps of perfect scaling from the smallest batch / steps needed.

    The smallest batch is the first that reached the target; smaller ones are not a number. Larger ones that missed
    the target are 0. Bounds are those of the steps.
    """
    samples = [Interval(*(batch.images * steps for steps in batch.steps)) for batch in batches]
    base = next((number for number, images in enumerate(samples) if math.isfinite(images.value)), len(samples))
    larger = [
        Interval(
            samples[base].value / images.value, samples[base].low / images.high, samples[base].high / images.low
        )
        for images in samples[base + 1 :]
    ]
    known = [*[NOTHING] * base, *[Interval(1.0, 1.0, 1.0)] * (base < len(samples)), *larger]
    return [batch._replace(efficiency=efficiency) for batch, efficiency in zip(batches, known, strict=True)]


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


def _steps(batch: Batch) -> str:
    return digits(batch.steps.value) if math.isfinite(batch.steps.value) else "missed"


def _step_bounds(batch: Batch) -> str:
    _, low, high = batch.steps
    return interval(low, high) if math.isfinite(high) else f"> {digits(low)}"


def _efficiency_bounds(batch: Batch) -> str:
    _, low, high = batch.efficiency
    return interval(low, high) if high > 0 else NONE


COLUMNS: Final[tuple[Column[Batch], ...]] = (
    METHOD,
    Column("batch", lambda batch: str(batch.images)),
    Column("steps", _steps),
    Column("range of steps", _step_bounds),
    Column("missed", lambda batch: str(batch.missed or NONE)),
    Column(
        "efficiency",
        lambda batch: digits(batch.efficiency.value) if batch.efficiency.value > 0 else NONE,
        importance="answer",
    ),
    Column("range of efficiency", _efficiency_bounds, importance="answer"),
    median(Record.epochs_to_target),
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
    return Section("Large batches", tables=[table(COLUMNS, batches, notes=[NOTE])] if batches else [])


def answer(findings: Findings) -> Answer | None:
    """Return up to which batch each method saves steps, the largest first, and what large batches cost."""
    methods = methods_of(findings)
    ordered = sorted(methods, key=lambda name: -np.nan_to_num(knee(methods[name]).value, nan=-1))
    if not ordered:
        return None
    of = {
        name: f" ({in_words(name, methods[name][0].scale.record)})" if len(methods) > 1 else "" for name in ordered
    }
    headline, *others = (_saving(methods[name], of[name]) for name in ordered)
    costs = [line for name in ordered for line in _accuracy(methods[name], of[name])]
    noise = [line for name in ordered for line in _noise(methods[name], of[name])]
    first, *knees = (knee(methods[name]) for name in ordered)
    if knees and all(not first.low > other.high for other in knees):  # also of a bound that is not known
        costs.insert(0, "Not decided which method saves most steps: the intervals of all methods overlap.")
    basis = [record for name in ordered for batch in methods[name] for record in batch.scale.records]
    return Answer(headline, [*costs, *others, *noise], basis)


def _saving(batches: Sequence[Batch], method: str) -> str:
    """Return up to which batch larger ones save steps."""
    at, largest = knee(batches), batches[-1].images
    high = f"{at.high:.0f}" if math.isfinite(at.high) else f"more than {largest}"
    bounds = f"{at.low:.0f} to {high}" if math.isfinite(at.low) else high
    saves = f"larger batches save at least half the steps that perfect scaling saves{method}"
    after = next((batch for batch in batches if batch.images > at.value), batches[-1])
    if math.isnan(at.value):
        return f"Training misses the target with every batch{method}."
    if math.isinf(at.value):
        return f"Up to {largest} images per batch, the most tested, {saves} (limit: {bounds})."
    if math.isinf(at.high) and at.low < batches[1].images:
        return f"Not decided up to which batch {saves}: the limit is {bounds} images."
    if math.isinf(after.steps.value):
        return f"Up to {at.value:.0f} images per batch {saves}; training with {after.images} misses the target."
    return f"Up to {at.value:.0f} images per batch ({bounds}) {saves}."


def _accuracy(batches: Sequence[Batch], method: str) -> list[str]:
    """Return the difference of final accuracies between the largest and the smallest batch, and missed targets."""
    lines, points = list[str](), batches[-1].scale.points_above(batches[0].scale)
    if len(points) > 1:
        sizes = f"From batches of {batches[0].images} to batches of {batches[-1].images} images"
        lines.append(f"{sizes} the final accuracy changes by {points_in_words(mean_interval(points))}{method}.")
    if missed := [str(batch.images) for batch in batches if batch.missed]:
        lines.append(f"At least one seed misses the target with batches of {several(missed)} images{method}.")
    return lines


def _noise(batches: Sequence[Batch], method: str) -> list[str]:
    """Return whether the noise scale is near the batch at which the efficiency in steps is a half."""
    at, scales = (
        knee(batches).value,
        [batch.scale.median(Record.noise_scale_q4) for batch in batches if not batch.missed],
    )
    if not math.isfinite(at) or not any(scales):
        return []
    scale = float(np.median([scale for scale in scales if scale]))
    near = "within" if max(scale / at, at / scale) <= FACTOR else "not within"
    return [
        f"The gradient noise scale, {digits(scale)} images, is {near} a factor of {FACTOR:g} of {at:.0f}{method}."
    ]


def charts(findings: Findings) -> list[Lines]:
    """Return over the batch: steps, with the line of perfect scaling, and the largest eigenvalue at the end."""

    def over_batch(values: Callable[[Batch], Interval]) -> dict[str, list[Point]]:
        return {
            name: [
                Point(batch.images, *value) for batch in batches if math.isfinite((value := values(batch)).high)
            ]
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
    groups: dict[Key, dict[int, list[Record]]] = {}
    known = [record for record in findings.records if record.sharpness and record.global_batch]
    for record in known:
        problem = (record.model, record.dataset, record.ranks, record.conditions(), record.method)
        groups.setdefault(problem, {}).setdefault(record.global_batch or 0, []).append(record)
    compared = [group for group in groups.values() if len(group) > 1 and min(map(len, group.values())) > 1]
    lines = [*map(_sharper, compared)]
    if not lines:
        return None
    pairs = [(record.smallest_eigenvalue or 0.0, record.sharpness or 1.0) for record in known]
    shares = [-least / most for least, most in pairs if least < 0]
    saddles = f"At the end of {len(shares)} of {len(pairs)} trainings the smallest eigenvalue is negative"
    lines.append(
        f"{saddles}, as at a saddle point; its size is at most {percent(max(shares, default=0))} of the sharpness."
    )
    return Answer(lines[0], lines[1:], known)


def _sharper(group: Mapping[int, Sequence[Record]]) -> str:
    """Return the sharpness of the largest batch / the smallest one's, over their seeds."""
    small, large = min(group), max(group)
    before, after = ({record.seed: math.log(record.sharpness or 1) for record in group[n]} for n in (small, large))
    ratio = mean_interval([after[seed] - before[seed] for seed in after.keys() & before.keys()])
    times, low, high = (digits(math.exp(value)) for value in ratio)
    first, last = group[small][0], group[large][0]
    equal = "steps" if first.steps == last.steps else "epochs"
    doubt = "" if ratio.low > 0 or ratio.high < 0 else "Not decided which minimum is sharper: "
    text = (
        f"after equal {equal} batches of {large} images lead to a minimum {times} ({low} to {high}) times as sharp"
    )
    return f"{capital(doubt + text)} as batches of {small} ({problem_words(first)})."


SHARPNESS: Final = Declaration(27, lambda _: Section("Sharpness"), answer=sharpness_answer, name="sharpness")
