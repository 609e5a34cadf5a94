"""Trials of a search: as many for every method, in virtual time, judged by the validation set."""

import json
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from hpcdl.cases.keys.key import Choice, given
from hpcdl.cases.keys.train_spec import SEED, TrainSpec, Tuning
from hpcdl.fabric.comm import Comm, Counters
from hpcdl.trace.recorder import Recorder, Scalar
from hpcdl.training.parts.journal import Journal

Training = Callable[[TrainSpec, Journal], Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]]


class Score(NamedTuple):
    """Result of one training of a trial; the lower the better."""

    missed: int
    """0: reached the target; 1: did not; 2: diverged."""
    value: float
    """Virtual time to the target; the negative best accuracy if it was not reached."""
    tie: float
    """Negative accuracy at the target."""
    images: int


REPEATED: Final = (1_000_001, 1_000_002)
"""Seeds of the repetitions: none of a case's own."""

_SEARCHES: Final[dict[str, tuple[Mapping[tuple[str, str], float], int]]] = {}
"""Settings of the best trial, empty for the case's own, and images of all trials, by the settings of a search.

Cases that differ in seed, straggler or network share one.
"""


async def tuned(
    spec: TrainSpec, tuning: Tuning, program: Training, comm: Comm
) -> tuple[TrainSpec, dict[str, Scalar]]:
    """Return ``spec`` with the settings of the best trial, and fields of the record.

    The best trial reaches the target first, by virtual time, and then with the highest accuracy; if none does, it
    has the highest accuracy. The best quarter of the trials is repeated with two more seeds, because the quickest
    of many rates may diverge with the next seed. ``program`` trains and does not look at the test set.
    """
    base = replace(
        spec,
        tune=None,
        seed=SEED,
        straggler=None,
        failure=None,
        jitter=0.0,
        sharpness=0,
        network=tuning.network or spec.network,
        trace="steps",
        stop_at_target=spec.target_accuracy is not None and spec.strategy.stops_at_target,
    )
    key = json.dumps(
        [given(base), tuning.trials, [[*setting, *bounds] for setting, bounds in tuning.ranges.items()]]
    )
    # Every seed of a case would repeat the same search, which takes as long as many trainings.
    if key not in _SEARCHES:
        trials = [changed(base, settings) for settings in [{}, *tuning.points()]]
        scores = [[await _trial(trial, program, comm)] for trial in trials]
        order = sorted(range(len(trials)), key=lambda number: scores[number][0])
        best = order[: math.ceil(len(trials) / 4)]
        for number in best if len(best) > 1 else ():
            again = [replace(trials[number], seed=seed) for seed in REPEATED]
            scores[number] += [await _trial(trial, program, comm) for trial in again]
        images = sum(score.images for each in scores for score in each)
        first = min(best, key=lambda number: _together(scores[number]))
        _SEARCHES[key] = [{}, *tuning.points()][first], images
    best_settings, all_images = _SEARCHES[key]
    words = ", ".join(f"{name}={value:.4g}" for (_, name), value in best_settings.items())
    record: dict[str, Scalar] = {"tuned": words or "as given", "tuning_images": all_images}
    return replace(changed(spec, best_settings), tune=None), record


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


async def _trial(spec: TrainSpec, program: Training, comm: Comm) -> Score:
    recorder = Recorder(events=False)
    await program(spec, Journal(recorder, lambda: Counters(0, 0, 0, 0, 0)))(comm)
    rows = zip(*(rank.evaluations for rank in recorder.virtual), strict=True)
    seen = [max(same, key=lambda evaluation: evaluation.training_seconds) for same in rows]
    images = max(evaluation.samples for evaluation in seen)
    if not math.isfinite(seen[-1].loss):
        return Score(2, 0, 0, images)
    target = math.inf if spec.target_accuracy is None else spec.target_accuracy
    reached = [Score(0, e.training_seconds, -e.accuracy, images) for e in seen if e.accuracy >= target]
    return min(reached, default=Score(1, -max(evaluation.accuracy for evaluation in seen), 0, images))


def _together(scores: Sequence[Score]) -> tuple[float, float, float]:
    """Return the score of a trial over its seeds: the worst kind, and the means."""
    return (
        max(score.missed for score in scores),
        sum(score.value for score in scores) / len(scores),
        sum(score.tie for score in scores) / len(scores),
    )
