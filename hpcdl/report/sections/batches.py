"""Steps to the target over the batch: where larger batches stop saving steps (Shallue et al. 2019)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.record_fields import conditions, method
from hpcdl.report.formats.cells import NONE, digits, whole
from hpcdl.report.formats.charts import Axis, Lines, Point, Series
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Answer, Declaration
from hpcdl.report.run.method_names import Names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.report.run.findings import Findings

LEAST: Final = 3
"""Batches of a method, at least."""
HALF: Final = 0.5
"""Efficiency in steps at the critical batch (McCandlish et al. 2018, equation 5.1)."""


class Batch(NamedTuple):
    """Trainings of a method with one batch, all seeds."""

    images: int
    records: Sequence[Mapping[str, Any]]

    @property
    def steps(self) -> float | None:
        """Steps to the target, median over seeds; None if a seed missed it."""
        samples = [record.get("samples_to_target") or math.nan for record in self.records]
        middle = float(np.median(np.array(samples, np.float64)))
        return middle / self.images if math.isfinite(middle) else None

    def median(self, name: str) -> float | None:
        """Return the median over seeds of a field; None if it is unknown."""
        known = [record[name] for record in self.records if record.get(name) is not None]
        return float(np.median(known)) if known else None

    @property
    def gap(self) -> float | None:
        """Training accuracy less final accuracy, median over seeds; None if it is unknown."""
        pairs = [(record.get("train_accuracy"), record.get("final_accuracy")) for record in self.records]
        gaps = [train - final for train, final in pairs if train is not None and final is not None]
        return float(np.median(gaps)) if gaps else None


def _methods(findings: Findings) -> dict[str, list[Batch]]:
    """Return by method its batches, ascending, of trainings with a target that differ in nothing else."""
    groups: dict[Any, dict[int, list[Mapping[str, Any]]]] = {}
    for record in findings.records:
        if record.get("kind") == "train" and record.get("target_accuracy") and record.get("global_batch"):
            own = tuple(record.get(name) for name in ("model", "dataset", "ranks", "target_accuracy"))
            by_batch = groups.setdefault((own, conditions(record), method(record)), {})
            by_batch.setdefault(int(record["global_batch"]), []).append(record)
    kept = [group for group in groups.values() if len(group) >= LEAST]
    name = Names(records[0] for group in kept for records in group.values())
    found: dict[str, list[Batch]] = {}
    for group in kept:
        batches = [Batch(images, group[images]) for images in sorted(group)]
        found.setdefault(name(batches[0].records[0]), []).extend(batches)
    return found


def efficiencies(batches: Sequence[Batch]) -> list[float | None]:
    """Return by batch the steps of perfect scaling from the smallest batch, by those that were needed."""
    first = next((batch for batch in batches if batch.steps), None)
    if first is None or first.steps is None:
        return [None] * len(batches)
    images = first.steps * first.images
    return [images / batch.images / batch.steps if batch.steps else None for batch in batches]


def knee(batches: Sequence[Batch]) -> float | None:
    """Return the batch at which the efficiency in steps falls to a half; None if it does not."""
    known = [(batch.images, value) for batch, value in zip(batches, efficiencies(batches), strict=True) if value]
    for (low, above), (high, below) in pairwise(known):
        if above > HALF >= below:
            at = (math.log(above) - math.log(HALF)) / (math.log(above) - math.log(below))
            return float(low * (high / low) ** at)
    return None


HEADER: Final = (
    "method",
    "batch",
    "steps",
    "efficiency in steps",
    "epochs",
    "final accuracy",
    "train - test",
    "sharpness",
    "noise scale",
    "tuned",
)
NOTE: Final = (
    "Steps to the target, medians over seeds. Efficiency in steps: those of perfect scaling from the smallest "
    "batch, by those that were needed; a half of it marks the critical batch, which the noise scale estimates. "
    "Train - test: accuracy on a sample of training images, less the final accuracy. Sharpness: largest "
    "eigenvalue of the Hessian of the loss on the sample; Keskar et al. 2017 expect it to grow with the batch."
)


def page(findings: Findings) -> Section:
    """Return a table of all methods and batches."""
    rows = [
        (
            name,
            str(batch.images),
            digits(batch.steps),
            digits(efficiency),
            digits(batch.median("epochs_to_target")),
            digits(batch.median("final_accuracy")),
            digits(batch.gap),
            *(digits(batch.median(field)) for field in ("sharpness", "noise_scale_q4")),
            str(batch.records[0].get("tuned") or NONE),
        )
        for name, batches in _methods(findings).items()
        for batch, efficiency in zip(batches, efficiencies(batches), strict=True)
    ]
    return Section("Large batches", tables=[Table("", HEADER, rows, 1, [NOTE]).without_empty()] if rows else [])


def answer(findings: Findings) -> Answer | None:
    """Return up to which batch each method saves steps."""
    found = {name: (batches, knee(batches)) for name, batches in _methods(findings).items()}
    if not found:
        return None
    words = [
        f"{name} {'up to ' + digits(at) if at else f'beyond {batches[-1].images}'}"
        for name, (batches, at) in sorted(found.items(), key=lambda item: -(item[1][1] or math.inf))
    ]
    return Answer(f"Larger batches save steps with at least half of perfect scaling: {'; '.join(words)}.")


def charts(findings: Findings) -> list[Lines]:
    """Return steps over batch, with the line of perfect scaling."""
    found = _methods(findings)
    series = [
        Series(name, [Point(batch.images, batch.steps) for batch in batches if batch.steps])
        for name, batches in found.items()
    ]
    series = [line for line in series if len(line.points) > 1]
    if not series:
        return []
    first, last = series[0].points[0], max(point.x for line in series for point in line.points)
    perfect = [first, Point(last, first.y * first.x / last)]
    axis = Axis("batch", whole, 2, sorted({point.x for line in series for point in line.points}))
    note = "Medians over seeds. Perfect scaling: twice the batch, half the steps."
    lines = [*series, Series("perfect scaling", perfect, "reference")]
    return [Lines("Steps to the target over the batch", axis, Axis("steps", digits, 2), lines, note)]


SECTION = Declaration(26, page, rows=40, answer=answer, figures=(charts,))
