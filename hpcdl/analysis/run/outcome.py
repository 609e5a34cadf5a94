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
    if not launch.updates:
        return None
    time, worker, old = (launch.updates[name] for name in ("time", "worker", "staleness"))
    begin, end = launch.span or (time.min(), time.max())
    inside = (time >= begin) & (time <= end)
    if not inside.any():
        return None
    where = np.stack([launch.updates["rank"][inside], launch.updates["version"][inside]])
    collect = int(inside.sum()) / np.unique(where, axis=1).shape[1]
    workers = len(np.unique(worker[inside]))
    in_flight = launch.record.gradients_in_flight
    return Staleness(
        mean=float(old[inside].mean()),
        largest=int(old.max()),
        shares=tuple((np.bincount(old[inside].clip(0, MAX_AGE)) / inside.sum()).tolist()),
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
        if seen and len(seen["step"]):
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
    if target is None or launch.diverged or not len(seen.get("step", ())):
        return np.inf
    hits = np.flatnonzero(seen["accuracy"] >= target)
    return float(seen[column][hits[np.argmin(seen["step"][hits])]]) if len(hits) else np.inf


def before_target(launch: Launch, column: str) -> float:
    """Return a column of the last evaluation before the target was reached, of the last one if it was not."""
    seen = launch.evaluations
    below = seen["step"] < at_target(launch, "step") if seen else np.array([], bool)
    return float(seen[column][below].max(initial=0)) if below.any() else 0.0


def kept(launches: Sequence[Launch]) -> JsonObject:
    """Return memory per rank, staleness of gradients, and distance between the ranks' parameters."""
    stale_launches = list(filter(None, map(staleness, launches)))
    last = [
        float(seen["consensus"][np.argmax(seen["step"])])
        for launch in launches
        if len((seen := launch.evaluations).get("step", ()))
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
    for seen in (launch.evaluations for launch in launches if len(launch.evaluations.get("step", ()))):
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
    seen = launch.residuals
    if not len(seen.get("step", ())):
        return []
    known = (seen["gradient_norm"] > 0) & np.isfinite(seen["gradient_norm"]) & np.isfinite(seen["residual_norm"])
    ratio = seen["residual_norm"][known] / seen["gradient_norm"][known]
    quarter = 4 * seen["step"][known] // (int(seen["step"].max()) + 1)
    return [float(ratio[quarter == one].mean()) if (quarter == one).any() else math.nan for one in range(4)]


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if len(values) else None
