"""Outcome of a training case: accuracy, memory, staleness and consensus.

Numbers are medians over launches.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
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


def learned(launches: Sequence[Launch]) -> JsonObject:
    """Return final loss and accuracy, best accuracy, and time, samples and epochs to the target; None if unknown.

    A target that one launch missed has no median time. If one launch diverged there are only the step and the rank
    at which a loss or parameter was first not finite.
    """
    diverged = min((launch.diverged for launch in launches if launch.diverged), default=None)
    ends: dict[str, list[float]] = {"loss": [], "accuracy": [], "best": []}
    for launch in () if diverged else launches:
        seen = launch.evaluations
        if len(seen):
            for name in ("loss", "accuracy"):
                tested = {"loss": launch.record.test_loss, "accuracy": launch.record.test_accuracy}[name]
                ends[name].append(float(seen[name][np.argmax(seen["step"])] if tested is None else tested))
            ends["best"].append(float(seen["accuracy"].max()))
        elif launch.last_loss is not None:
            ends["loss"].append(launch.last_loss)
    columns = ("training_seconds", "samples", "epoch")
    reached = np.median([[at_target(launch, column) for column in columns] for launch in launches], axis=0)
    missed = any(at_target(launch, "step") == np.inf for launch in launches)
    seconds, samples, epochs = (None, None, None) if missed else reached.tolist()
    return {
        **dict(zip(("diverged_step", "diverged_rank"), diverged or (None, None), strict=True)),
        "final_loss": _median(ends["loss"]),
        "final_accuracy": _median(ends["accuracy"]),
        "best_accuracy": _median(ends["best"]),
        "seconds_to_target": seconds,
        "samples_to_target": None if samples is None else int(samples),
        "samples_before_target": float(np.median([before_target(launch, "samples") for launch in launches])),
        "epochs_to_target": epochs,
    }


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


def kept(launches: Sequence[Launch]) -> JsonObject:
    """Return memory per rank, staleness of gradients, and distance between the ranks' parameters."""
    stale_launches = list(filter(None, map(staleness, launches)))
    last = [
        float(seen["consensus"][np.argmax(seen["step"])]) for launch in launches if len(seen := launch.evaluations)
    ]
    return {
        "memory_bytes_per_rank": max(launch.memory_bytes for launch in launches) or None,
        "consensus_distance": _median(list(filter(math.isfinite, last))),
        "staleness_mean": _median([stale.mean for stale in stale_launches]),
        "staleness_max": max((stale.largest for stale in stale_launches), default=None),
        "staleness_expected": _median([stale.expected for stale in stale_launches if stale.expected is not None]),
        "workers": max((stale.workers for stale in stale_launches), default=None),
        "gradients_per_update": _median([stale.collect for stale in stale_launches if stale.collect is not None]),
    }


def fidelity(launches: Sequence[Launch]) -> JsonObject:
    """Return norms of residuals, and the gradient's cosine and error by compression; None if dense."""
    columns: dict[str, list[float]] = {}
    largest: list[float] = []
    for seen in (launch.evaluations for launch in launches if len(launch.evaluations)):
        last = int(np.argmax(seen["step"]))
        for name in ("residual_norm", "gradient_cosine", "gradient_error"):
            columns.setdefault(name, []).append(float(seen[name][last]))
        largest.append(float(np.max(seen["residual_norm"])))
    columns["residual_norm_largest"] = largest
    for launch in launches:
        for number, value in enumerate(residual_to_gradient(launch), 1):
            columns.setdefault(f"residual_to_gradient_q{number}", []).append(value)
    return {name: _median(list(filter(math.isfinite, values))) for name, values in columns.items()}


def residual_to_gradient(launch: Launch) -> list[float]:
    """Return the norm of the residual by that of the gradient, means over each quarter of the exchanges.

    Not a number for a quarter in which none was recorded; empty without residuals.
    """
    residuals = launch.case.residuals
    if not len(residuals):
        return []
    step, place, count = np.unique(residuals["step"], return_inverse=True, return_counts=True)
    # root mean squares over the ranks that recorded a step
    residual, gradient = (
        np.sqrt(np.bincount(place, residuals[name] ** 2, len(count)) / count)
        for name in ("residual_norm", "gradient_norm")
    )
    known = (gradient > 0) & np.isfinite(gradient) & np.isfinite(residual)
    ratio = residual[known] / gradient[known]
    of_quarters = (ratio[4 * step[known] // (step[-1] + 1) == quarter] for quarter in range(4))
    return [float(ratios.mean()) if len(ratios) else math.nan for ratios in of_quarters]


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if len(values) else None
