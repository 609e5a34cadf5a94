"""Trials of a search: as many for every method, in virtual time, judged by the validation set."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hpcdl.cases.spec.keys import given
from hpcdl.cases.spec.tuning import SEED, Tuning
from hpcdl.fabric.comm import Counters
from hpcdl.trace.recorder import Evaluation, Recorder
from hpcdl.training.parts.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from hpcdl.cases.spec.keys import Choice
    from hpcdl.cases.spec.train_spec import TrainSpec
    from hpcdl.fabric.comm import Comm
    from hpcdl.trace.recorder import Scalar


class Tuned(NamedTuple):
    """Result of a search."""

    settings: Mapping[tuple[str, str], float]
    """Those of the best trial; empty: the case's own."""
    images: int
    """Training images of all trials."""


_FOUND: Final[dict[str, Tuned]] = {}
"""Results by the settings of a search: cases that differ in seed, straggler or network share one."""


async def tuned(
    spec: TrainSpec,
    tuning: Tuning,
    program: Callable[[TrainSpec, Journal], Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]],
    comm: Comm,
) -> tuple[TrainSpec, dict[str, Scalar]]:
    """Return ``spec`` with the settings of the best trial, and fields of the record.

    The best trial reaches the target first, by virtual time, and then with the highest accuracy; if none does, it
    has the highest accuracy. ``program`` trains and does not look at the test set.
    """
    base = replace(
        spec,
        tune=None,
        seed=SEED,
        straggler=None,
        failure=None,
        jitter=0.0,
        network=tuning.network or spec.network,
        trace="steps",
        stop_at_target=spec.target_accuracy is not None and spec.strategy.stops_at_target,
    )
    key = json.dumps(
        [given(base), tuning.trials, [[*setting, *bounds] for setting, bounds in tuning.ranges.items()]]
    )
    if key not in _FOUND:
        scores, images = [], 0
        for settings in [{}, *tuning.points()]:
            score, seen = await _trial(changed(base, settings), program, comm)
            scores.append((score, settings))
            images += seen
        _FOUND[key] = Tuned(min(scores, key=lambda one: one[0])[1], images)
    found = _FOUND[key]
    words = ", ".join(f"{name}={value:.4g}" for (_, name), value in found.settings.items())
    record: dict[str, Scalar] = {
        "tuned": words or "as given",
        "tuning_trials": tuning.trials,
        "tuning_images": found.images,
    }
    return replace(changed(spec, found.settings), tune=None), record


def changed(spec: TrainSpec, settings: Mapping[tuple[str, str], float]) -> TrainSpec:
    """Return ``spec`` with the settings of a trial."""
    values: dict[str, Any] = {}
    for (key, name), value in settings.items():
        if key == name:
            values[key] = value
        else:
            choice: Choice = values.get(key, getattr(spec, key))
            values[key] = replace(choice, settings={**choice.settings, name: value})
    return replace(spec, **values)


async def _trial(
    spec: TrainSpec,
    program: Callable[[TrainSpec, Journal], Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]],
    comm: Comm,
) -> tuple[tuple[float, ...], int]:
    """Train; return a score, the lower the better, and the images of the training."""
    recorder = Recorder(events=False)
    try:
        await program(spec, Journal(recorder, lambda: Counters(0, 0, 0, 0, 0)))(comm)
    except FloatingPointError:  # diverged, and could not be compressed
        return (2.0,), 0
    rows = [[Evaluation(*row) for row in one.evaluations] for one in recorder.virtual]
    seen = [max(same, key=lambda one: one.training_seconds) for same in zip(*rows, strict=True)]
    images = max(one.samples for one in seen)
    target = math.inf if spec.target_accuracy is None else spec.target_accuracy
    reached = [(0, one.training_seconds, -one.accuracy) for one in seen if one.accuracy >= target]
    return min(reached, default=(1, -max(one.accuracy for one in seen))), images
