"""Tuning by a grid of rates or batches. Records depend on their own case, so suites extend grids, not runs."""

import json
import math
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from hpcdl.cases.keys.key import given
from hpcdl.cases.keys.train_spec import TrainSpec, Tuning
from hpcdl.fabric.comm import Comm, Counters
from hpcdl.trace.files import atomic_write, from_json, parse_json, read_text
from hpcdl.trace.recorder import Evaluation, Recorder, Scalar
from hpcdl.training.parts.journal import Journal

Training = Callable[[TrainSpec, Journal], Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]]


@dataclass(frozen=True)
class Ended:
    """What a trial found."""

    accuracy: float
    """At its end, to six digits as in records. If the loss is not finite: that of chance, 1 / classes."""
    images: float


class Trials:
    """Trials of grids that have ended, by their settings: cases share them, and a file keeps them."""

    def __init__(self) -> None:
        self._ended: dict[str, Ended] = {}
        self._file: Path | None = None

    def keep(self, file: Path) -> str | None:
        """Take the trials of ``file``, and write each further one to it.

        One that cannot be read, of another version too, is renamed, and its trials run again: returned is a line.
        Raises OSError if it cannot be renamed.
        """
        self._file, self._ended = file, {}
        if not file.exists():
            return None
        try:
            self._ended = from_json(dict[str, Ended], parse_json(read_text(file), file), str(file))
        except ValueError as error:
            file.rename(file.with_name(f"{file.name}.damaged"))
            return f"{file.name} is renamed to {file.name}.damaged, and its trials run again: {error}"
        return None

    async def result(self, trial: TrainSpec, program: Training, comm: Comm) -> Ended:
        """Return what a trial found, which trains unless it did. Raises OSError if the file cannot be written."""
        settings = json.dumps(given(trial), sort_keys=True)
        if settings not in self._ended:
            at_end = trial.planned_steps / (trial.train_images // trial.images_per_step)
            last = (await evaluations(replace(trial, evaluate_every=at_end), program, comm))[-1]
            accuracy = last.accuracy if math.isfinite(last.loss) else 1 / trial.data.classes
            self._ended[settings] = Ended(round(accuracy, 6), last.samples)
            if self._file:
                every = {key: asdict(ended) for key, ended in self._ended.items()}
                with atomic_write(self._file) as path:
                    path.write_text(json.dumps(every, indent=1), encoding="utf-8")
        return self._ended[settings]


TRIALS: Final = Trials()


async def best_of_grid(
    spec: TrainSpec, tuning: Tuning, program: Training, comm: Comm
) -> tuple[TrainSpec, dict[str, Scalar]]:
    """Return ``spec`` with the value of the highest final accuracy, of equal ones the smallest, and record fields.

    ``program`` trains and does not look at the test set.
    """
    grid, ended = tuning.grid, [await TRIALS.result(trial, program, comm) for trial in grid_trials(spec, tuning)]
    accuracies = [each.accuracy for each in ended]
    best = accuracies.index(max(accuracies))
    low, high = grid[0] ** 2 / grid[1], grid[-1] ** 2 / grid[-2]
    found = grid[best] if tuning.factor is None else grid[best] * tuning.factor
    edges = {0: f"LOW: add {_text(tuning, low)}", len(grid) - 1: f"HIGH: add {_text(tuning, high)}"}
    record: dict[str, Scalar] = {
        "tuned": f"{tuning.grid_key}={_text(tuning, found)}",
        "tuning_images": round(sum(each.images for each in ended)),
        "tuning_trials": ", ".join(f"{value}: {at_end}" for value, at_end in zip(grid, accuracies, strict=True)),
        "tuning_edge": edges.get(best),
    }
    changes: dict[str, Any] = {tuning.grid_key: found}
    return replace(spec, tune=None, **changes), record


def _text(tuning: Tuning, value: float) -> str:
    return str(round(value)) if tuning.batches else f"{value:.4g}"


def grid_trials(spec: TrainSpec, tuning: Tuning) -> list[TrainSpec]:
    """Return the trials of a grid, trained to their end. Raises ValueError for a wrong ``like``."""
    like = spec.like(tuning.like or {})
    whole = {"target_accuracy": None, "stop_at_target": False, "evaluate_every": 1}
    trial = of_trials(like, tuning, seed=tuning.seed, straggler=like.straggler, **whole)
    if tuning.batches:
        return [replace(trial, global_batch=batch) for batch in tuning.batches]
    return [replace(trial, learning_rate=float(rate)) for rate in tuning.rates]


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
