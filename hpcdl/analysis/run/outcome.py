"""Outcome of a training case: accuracy, memory, staleness and consensus.

Numbers are medians over launches.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from hpcdl.analysis.run.launches import Launch
from hpcdl.trace.files import JsonObject

MAX_AGE: Final = 10_000
"""Staleness from which on gradients count together: a share is stored for each number below it."""


@dataclass(frozen=True)
class Staleness:
    """Of the gradients that were applied within the measured span; the largest is of the whole training."""

    mean: float
    largest: int
    shares: tuple[float, ...]
    """Of the gradients, at staleness 0, 1, 2, ..."""
    workers: int
    """Ranks whose gradients were applied."""
    collect: float | None
    """Gradients to an update, the mean; None where no server collects them."""
    expected: float | None
    """Expected mean staleness, (workers x in flight - 1) / collect; None where workers wait for others."""


def staleness(launch: Launch) -> Staleness | None:
    """Return the staleness of one launch's updates; None without updates."""
    updates, span = launch.case.updates, launch.throughput
    inside = updates[(updates["time"] >= span.begin) & (updates["time"] <= span.end)] if span else updates
    if not len(inside):
        return None
    collect = len(inside) / len(np.unique(inside[["rank", "version"]]))
    workers = len(np.unique(inside["worker"]))
    in_flight = launch.record.gradients_in_flight
    return Staleness(
        mean=float(inside["staleness"].mean()),
        largest=int(updates["staleness"].max()),
        shares=tuple((np.bincount(inside["staleness"].clip(0, MAX_AGE)) / len(inside)).tolist()),
        workers=workers,
        collect=collect if launch.record.served else None,
        expected=(workers * in_flight - 1) / collect if in_flight else None,
    )


AT_END: Final = {
    "final_loss": "loss",
    "final_accuracy": "accuracy",
    "consensus_distance": "consensus",
    **{name: name for name in ("residual_norm", "gradient_cosine", "gradient_error")},
}
"""Columns of the last evaluation by column of the record."""
AT_TARGET: Final = {
    "seconds_to_target": "training_seconds",
    "samples_to_target": "samples",
    "epochs_to_target": "epoch",
}
"""Columns of the first evaluation at the target by column of the record."""


def outcome(launches: Sequence[Launch]) -> JsonObject:
    """Return the columns of a record about accuracy, memory, staleness and compression; None if unknown.

    A target that one launch missed has no median time. If one launch diverged there are neither losses nor
    accuracies, but the step and the rank at which a loss or parameter was first not finite.
    """
    diverged = min((launch.diverged for launch in launches if launch.diverged), default=None)
    staleness_of = list(filter(None, map(staleness, launches)))
    numbers = [_numbers(launch) for launch in launches]
    columns: JsonObject = {
        name: median_of(each.get(name) for each in numbers) for name in dict.fromkeys(chain.from_iterable(numbers))
    }
    if any(each["seconds_to_target"] == np.inf for each in numbers):
        columns |= dict.fromkeys(AT_TARGET)
    elif columns["samples_to_target"] is not None:
        columns["samples_to_target"] = int(columns["samples_to_target"])
    if diverged:
        columns |= dict.fromkeys(("final_loss", "final_accuracy", "best_accuracy"))
    return {
        **columns,
        **dict(zip(("diverged_step", "diverged_rank"), diverged or (None, None), strict=True)),
        "memory_bytes_per_rank": max(launch.memory_bytes for launch in launches) or None,
        "staleness_mean": median_of(stale.mean for stale in staleness_of),
        "staleness_max": max((stale.largest for stale in staleness_of), default=None),
        "staleness_expected": median_of(stale.expected for stale in staleness_of),
        "workers": max((stale.workers for stale in staleness_of), default=None),
        "gradients_per_update": median_of(stale.collect for stale in staleness_of),
    }


def _numbers(launch: Launch) -> dict[str, float]:
    """Return the columns of a record that are medians over launches; not finite where unknown."""
    tests, tested = launch.evaluations, {"loss": launch.record.test_loss, "accuracy": launch.record.test_accuracy}
    numbers = {name: at_target(launch, column) for name, column in AT_TARGET.items()}
    numbers["samples_before_target"] = before_target(launch, "samples")
    for quarter, ratio in enumerate(residual_to_gradient(launch), 1):
        numbers[f"residual_to_gradient_q{quarter}"] = ratio
    if len(tests):
        last = tests[np.argmax(tests["step"])]
        for name, column in AT_END.items():
            value = tested.get(column)
            numbers[name] = float(last[column]) if value is None else value
        numbers["best_accuracy"] = float(tests["accuracy"].max())
        numbers["residual_norm_largest"] = float(tests["residual_norm"].max())
    elif launch.last_loss is not None:
        numbers["final_loss"] = launch.last_loss
    return numbers


def at_target(launch: Launch, column: str) -> float:
    """Return a column of the first evaluation at or above the target; infinite if none, or training diverged."""
    seen, target = launch.evaluations, launch.record.target_accuracy
    if target is None or launch.diverged:
        return np.inf
    hits = seen[seen["accuracy"] >= target]
    return float(hits[column][np.argmin(hits["step"])]) if len(hits) else np.inf


def before_target(launch: Launch, column: str) -> float:
    """Return a column of the last evaluation before the target was reached, of the last one if it was not."""
    seen = launch.evaluations
    return float(seen[column][seen["step"] < at_target(launch, "step")].max(initial=0))


def residual_to_gradient(launch: Launch) -> list[float]:
    """Return norm of the residual / norm of the gradient, means over each quarter of the exchanges.

    Not a number for a quarter in which none was recorded; empty without residuals.
    """
    residuals = launch.case.residuals
    if not len(residuals):
        return []
    step, index, count = np.unique(residuals["step"], return_inverse=True, return_counts=True)
    # root mean squares over the ranks that recorded a step
    residual, gradient = (
        np.sqrt(np.bincount(index, residuals[name] ** 2, len(count)) / count)
        for name in ("residual_norm", "gradient_norm")
    )
    finite = (gradient > 0) & np.isfinite(gradient) & np.isfinite(residual)
    ratio = residual[finite] / gradient[finite]
    of_quarters = (ratio[4 * step[finite] // (step[-1] + 1) == quarter] for quarter in range(4))
    return [float(ratios.mean()) if len(ratios) else math.nan for ratios in of_quarters]


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of the finite values; None without such."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return float(np.median(finite)) if finite else None
