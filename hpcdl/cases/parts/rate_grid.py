"""Tuning by a grid of learning rates. Records depend on their own case, so suites extend grids, not runs."""

import json
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final

from hpcdl.cases.keys.key import given, restored
from hpcdl.cases.keys.train_spec import TrainSpec, Tuning
from hpcdl.fabric.comm import Comm, Counters
from hpcdl.trace.recorder import Evaluation, Recorder, Scalar
from hpcdl.training.parts.journal import Journal

Training = Callable[[TrainSpec, Journal], Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]]

_RESULTS: Final[dict[str, tuple[float, float]]] = {}
"""Final accuracy, to six digits as in records, and images of each trial, by its settings. Cases share trials."""


async def best_of_grid(
    spec: TrainSpec, tuning: Tuning, program: Training, comm: Comm
) -> tuple[TrainSpec, dict[str, Scalar]]:
    """Return ``spec`` with the rate of the highest final accuracy, of equal ones the smallest, and record fields.

    A trial whose final loss is not finite has the accuracy of chance, 1 / classes. ``program`` trains and does not
    look at the test set.
    """
    rates, trials = tuning.rates, _trials(spec, tuning)
    at_end = spec.planned_steps / (spec.train_images // spec.images_per_step)
    for key in [key for key in trials if key not in _RESULTS]:
        last = (await evaluations(replace(trials[key], evaluate_every=at_end), program, comm))[-1]
        accuracy = last.accuracy if math.isfinite(last.loss) else 1 / spec.data.classes
        _RESULTS[key] = round(accuracy, 6), last.samples
    accuracies, images = zip(*map(_RESULTS.__getitem__, trials), strict=True)
    best = accuracies.index(max(accuracies))
    low, high = rates[0] ** 2 / rates[1], rates[-1] ** 2 / rates[-2]
    record: dict[str, Scalar] = {
        "tuned": f"learning_rate={rates[best]:.4g}",
        "tuning_images": round(sum(images)),
        "tuning_trials": ", ".join(f"{rate}: {value}" for rate, value in zip(rates, accuracies, strict=True)),
        "tuning_edge": {0: f"LOW: add {low:.4g}", len(rates) - 1: f"HIGH: add {high:.4g}"}.get(best),
    }
    return replace(spec, learning_rate=rates[best], tune=None), record


def remember(fields: Mapping[str, Any]) -> None:
    """Keep the trials in a finished case's record. Raises one of FAULTS for a record of another version."""
    if entries := fields.get("tuning_trials"):
        spec = restored(TrainSpec, json.loads(fields["settings"]))
        accuracies = [float(entry.partition(": ")[2]) for entry in entries.split(", ")]
        images = fields["tuning_images"] / len(accuracies)
        for key, accuracy in zip(_trials(spec, spec.tune or Tuning()), accuracies, strict=True):
            _RESULTS[key] = accuracy, images


def _trials(spec: TrainSpec, tuning: Tuning) -> dict[str, TrainSpec]:
    """Return the trials of a grid by their settings, in order of the rates. They train to their end."""
    base = of_trials(spec, tuning, seed=tuning.seed, evaluate_every=1, target_accuracy=None, stop_at_target=False)
    trials = [replace(base, learning_rate=float(rate)) for rate in tuning.rates]
    return {json.dumps(given(trial), sort_keys=True): trial for trial in trials}


def of_trials(spec: TrainSpec, tuning: Tuning, **changes: Any) -> TrainSpec:
    """Return a case as trials train it: on the search's network, with nothing that goes wrong."""
    network = tuning.network or spec.network
    plain = replace(spec, tune=None, straggler=None, failure=None, sharpness=0, network=network, trace="steps")
    return replace(plain, **changes)


async def evaluations(spec: TrainSpec, program: Training, comm: Comm) -> list[Evaluation]:
    """Return the evaluations of a simulated training, each at the time of the rank that reached it last."""
    recorder = Recorder(events=False)
    await program(spec, Journal(recorder, lambda: Counters(0, 0, 0, 0, 0)))(comm)
    rows = zip(*(rank.evaluations for rank in recorder.virtual), strict=True)
    return [max(same, key=lambda evaluation: evaluation.training_seconds) for same in rows]
