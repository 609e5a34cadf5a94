"""``kind = "train"``: train a network on a dataset by a strategy, and see how fast and how well.

Trials of a search (``tune``): as many for every method, in virtual time, judged by the validation set.
"""

import json
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import starmap
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np

from hpcdl import registry
from hpcdl.cases.keys.checks import (
    CHECKED_PAIRS,
    CLUSTER,
    STAGES,
    STRAGGLER,
    Check,
    Setup,
    makes,
    once,
    refusals,
    too_large,
)
from hpcdl.cases.keys.compute_times import TIMES, shape_text
from hpcdl.cases.keys.key import MAX_STEPS, Choice, given
from hpcdl.cases.keys.scheme import check_library, compression_fields, table_of, traits_of, try_compressor, try_out
from hpcdl.cases.keys.suite_tables import EITHER_OR
from hpcdl.cases.keys.train_spec import SEED, TrainSpec, Tuning
from hpcdl.cases.parts.autotune import fitted_bucket_bytes, multiply, one_host, tune
from hpcdl.cases.parts.rate_grid import Training, best_of_grid, evaluations, grid_trials, of_trials
from hpcdl.cases.parts.step_simulation import simulate
from hpcdl.data.parts.sharding import EQUAL, bounds
from hpcdl.fabric.comm import Comm
from hpcdl.fabric.faults import Delays, Slowed, accurate_sleep
from hpcdl.nn.backend import backend
from hpcdl.nn.volumes import volumes
from hpcdl.trace.recorder import Scalar
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.noise_and_sharpness import training_gap
from hpcdl.training.parts.session import Session


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
    stops = spec.target_accuracy is not None and spec.strategy.stops_at_target
    base = of_trials(spec, tuning, seed=SEED, jitter=0.0, stop_at_target=stops)
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
    seen = await evaluations(spec, program, comm)
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


CHECKED_STEPS: Final = 100
"""First steps whose learning rates are checked."""
OF_OPTIMIZERS: Final = ("update", "state", "steps", "look_ahead")
"""Members of an optimizer; a user's own may lack one."""
MAX_SECONDS: Final = 10**9
"""Virtual time of a training's computing, at most: 31 years; traces count nanoseconds in 64 bits."""


def memory_bytes(spec: TrainSpec) -> int:
    """Return the bytes of parameters, gradients and activations of a rank, of all ranks where they are simulated.

    0 where they are on a device.
    """
    if not spec.kernels.on_host:
        return 0
    if spec.network:
        pipelines, training = spec.ranks // spec.stages, len(spec.workers)
        return sum(pipelines * 2 * weights + training * outputs for weights, outputs in spec.stage_bytes)
    if spec.divisions:
        ((weights, outputs),) = spec.stage_bytes
        whole = volumes(spec.layers, spec.data.shape, 1).parameters
        return 2 * weights * spec.divisions[0].parameters // whole + outputs
    return max(2 * weights + outputs for weights, outputs in spec.stage_bytes)


def _indivisible(case: Setup) -> object:
    number, batch = case.copies, case.images_per_step
    if batch % number:
        below, above = batch // number * number, -(-batch // number) * number
        noun = "workers" if number == len(case.workers) else "copies of the network"
        by = f"ranks = {number}" if number == case.ranks else f"the {number} {noun} among {case.ranks} ranks"
        return f"{batch} is not divisible by {by}; {below or above} and {above} are"
    return None


def _rates(case: Setup) -> object:
    """Return the first step, or soon after the last one, at which the learning rate is no finite number."""
    length = case.planned_steps
    # schedules are monotone between the end of their warm-up and their last step
    steps = sorted({*range(min(length, CHECKED_STEPS)), length // 2, length - 1, length, 2 * length})
    rates = ((step, case.rate(step)) for step in steps)
    return next((f"{rate} at step {step}" for step, rate in rates if not math.isfinite(rate)), None)


def _shares(case: Setup) -> object:
    weights, workers = len(case.shares.weights), case.workers
    if weights > len(workers):
        return f"{weights} of them, but {len(workers)} to share a batch"
    images = np.diff(bounds(case.images_per_step, len(workers), case.shares))
    rank = f"rank {workers[int(images.argmin())]}"
    lacks = case.shares != EQUAL and not images.all()
    return lacks and f"with {case.shares} {rank} would receive 0 of {case.images_per_step} images"


def _seconds(case: Setup) -> float:
    """Return the virtual time of a training's computing, if one rank makes all steps (s)."""
    step, slow = case.compute_times.step_seconds(case.images_per_step), case.straggler
    return float(case.planned_steps * (step * slow.factor + slow.seconds if slow else step))


def _trials(case: Setup) -> None:
    tuning, own = case.tune, case[case.tune.grid_key]
    if tuning.grid and own not in tuning.grid:
        name = "batches" if tuning.batches else "rates"
        raise ValueError(f"{name}: {own}, the case's own, is not among {[*tuning.grid]}")
    if tuning.grid and not {"tune", "seed", tuning.grid_key}.isdisjoint(tuning.like or ()):
        raise ValueError(f"like: trials have their own tune, seed and {tuning.grid_key}; leave them out")
    for trial in grid_trials(case.spec, tuning) if tuning.like or tuning.batches else ():
        for refusal in refusals(CHECKS, case.kind, trial, [*(tuning.like or ())], elsewhere=case.elsewhere):
            at = f"{trial.global_batch}: " if tuning.batches else ""
            raise ValueError(f"{'like' if tuning.like else 'batches'}: {at}{refusal}")
    for settings in case.tune.points():
        trial = changed(case.spec, settings)
        trial.optimizer.check()
        trial.training.check(None)
        trial.optimizer.make()
        trial.strategy.check_settings(trial.replicas, trial.training.in_full)


def _idle(case: Setup) -> object:
    idle, able = set(case.straggler.paused) - {*case.workers}, f"{case.workers[0]} to {case.workers[-1]}"
    return idle and f"rank {min(idle)} has no batches to pause before; these have: {able}"


def _needed(case: Setup) -> object:
    """Return a rank that may not fail but does, and those that may; None without such a rank."""
    may_fail = case.strategy.may_fail
    others = [rank for rank in may_fail(case.ranks, case.training.in_full) if rank] if may_fail else []
    needed = [rank for rank in case.failure.ranks if rank not in others]
    may = f"these may fail: {others[0]} to {others[-1]}" if others else "with such settings none may fail"
    return needed and f"rank {needed[0]}; {may}"


def _late(case: Setup) -> object:
    most = case.planned_steps * case.strategy.most_steps(case.ranks, case.training.in_full)
    return case.failure.step >= most and most


CHECKS: Final = (
    *starmap(once, EITHER_OR),
    makes("mesh", "replicas"),
    Check("training", lambda case: case.strategy.check_settings(case.replicas, case.training.in_full)),
    Check("global_batch", _indivisible),
    Check("dataset", lambda case: not len(case.data.test), "{data.name} has no test images"),
    Check(
        "{batch_key}",
        lambda case: case.images_per_step > case.train_images,
        "{images_per_step} images a step, but {data.name} has {train_images}",
    ),
    Check(
        "epochs",
        lambda case: case.planned_steps > MAX_STEPS,
        f"are {{planned_steps}} steps, and must be at most {MAX_STEPS}",
    ),
    makes("backend", "kernels"),
    *CHECKED_PAIRS,
    *CLUSTER,
    Check("dtype", lambda case: case.kernels.check_precision(case.dtype)),
    Check(
        "model",
        lambda case: case.outputs != (case.data.classes,),
        "ends in {outputs}, but {data.name} has {data.classes} classes",
    ),
    Check("optimizer", lambda case: attrgetter(*OF_OPTIMIZERS)(case.optimizer.make()) and None),
    Check("schedule", _rates, "the learning rate is {wrong}"),
    Check(
        "training", lambda case: case.strategy.check_rates(case.rate, case.planned_steps, case.training.in_full)
    ),
    Check("shares: weights", _shares),
    Check(
        "network",
        lambda case: len(case.times_given) != 1,
        f"a simulated case needs exactly one of {', '.join(TIMES)}",
    ),
    Check(
        "{times_given[0]}",
        lambda case: not (seconds := _seconds(case)) <= MAX_SECONDS and seconds,
        f"the training would take {{wrong:.3g}} s, and may take {MAX_SECONDS} s at most",
        of="network",
    ),
    Check(
        "tune: optimizer",
        lambda case: case.tune.optimizer and case.strategy.optimizer,
        "{training.name!r} has its own optimizer",
    ),
    Check("tune: seed", lambda case: case.tune.seed == case.seed, "{seed} is one of the case; take another"),
    Check("tune", _trials),
    *STAGES,
    Check(
        "mesh",
        lambda case: not case.strategy.aggregates and [name for part in case.divisions for name in part.whole],
        "{training.name!r} has one shard for each parameter, but every rank of a model group has all of "
        "{wrong[0]}",
    ),
    Check("{batch_key}", lambda case: too_large(memory_bytes(case.spec)), "{most_images} images a rank: {wrong}"),
    Check("aggregation", lambda case: check_library(case.aggregation, case.network), of="scheme"),
    Check("aggregation", lambda case: try_out(case.aggregation, case.ranks // case.stages), of="scheme"),
    Check(
        "compression", lambda case: case.strategy.check_compression(case.plan, case.training.in_full), of="plan"
    ),
    Check("compression", lambda case: try_compressor(case.compression, case.plan)),
    Check(
        "failure",
        lambda case: [f"rank {rank}" for rank in case.failure.ranks if not 0 <= rank < case.ranks],
        "{wrong[0]} is not among the {ranks} ranks of the case",
    ),
    STRAGGLER,
    Check("straggler: rank", _idle),
    Check("failure: rank", _needed, "{training.name!r} does not go on without {wrong}"),
    Check("failure: step", _late, "{failure.step}, but no rank of this training takes more than {wrong} steps"),
    Check(
        "sharpness",
        lambda case: case.sharpness > case.train_images,
        "{sharpness} images, but {data.name} has {train_images}",
    ),
)
"""Checks of a training, in an order in which each can rely on those before it."""

WARMUP_STEPS: Final = 2
"""Steps at the start whose times are kept but not counted: first touch of memory, first connection of peers."""

LADDER: Final = tuple(1 << power for power in range(12, 31, 3))
"""Bytes at which ``auto`` measures schemes, and at the whole gradient's."""

SPEC: Final = TrainSpec


def identity(spec: TrainSpec) -> list[str]:
    choices = [spec.model, spec.dataset, spec.training, *([spec.aggregation] if spec.strategy.aggregates else [])]
    return spec.words(choices, f"{spec.epochs:g}ep" if spec.steps is None else f"{spec.steps}st")


def fields(spec: TrainSpec) -> dict[str, Scalar]:
    plain = ("learning_rate", "epochs", "target_accuracy", "network")
    simulated = ("ranks_per_host", "jitter", *TIMES) if spec.network else ()
    return {
        **spec.common_fields,
        **{key: str(getattr(spec, key)) for key in ("backend", "schedule")},
        "image_shape": shape_text(spec.shape),
        "optimizer": spec.strategy.optimizer or str(spec.optimizer),
        **{key: getattr(spec, key) for key in (*plain, *simulated)},
        "global_batch": spec.images_per_step,
        "shares": None if spec.sharing == EQUAL else str(spec.sharing),
        "steps": spec.planned_steps,
        "warmup_steps": 0 if spec.network else min(WARMUP_STEPS, spec.planned_steps - 1),
        **(spec.straggler.fields if spec.straggler else {"straggler": None}),
        "failure": str(spec.failure) if spec.failure else None,
        "tuning": spec.tune and (spec.tune.trials or len(spec.tune.grid)),
        "tuning_like": spec.tune and spec.tune.like_text,
        "activation_bytes_per_rank": max(outputs for _, outputs in spec.stage_bytes),
        "served": spec.strategy.served,
        "gradients_in_flight": spec.strategy.gradients_in_flight(spec.training.in_full),
    }


def program(
    spec: TrainSpec, journal: Journal, *, tests: bool = True
) -> Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]:
    """See :class:`hpcdl.suite.Kind`; without ``tests`` a case with a validation set leaves the test set alone."""
    run, straggler = spec.training.bind(), spec.straggler
    adaptive = spec.strategy.aggregates and traits_of(spec.aggregation).adaptive
    has_buckets = "bucket_bytes" in registry.settings_of(run.func)

    async def train(comm: Comm, mine: Session) -> dict[str, Scalar]:
        chosen = await _choose(comm, mine, spec) if adaptive and not spec.network else None
        if has_buckets and not spec.network and not await one_host(comm):
            mine.bucket_bytes = await fitted_bucket_bytes(comm, multiply)
        before = mine.journal.read().bytes
        try:
            await run(comm, mine)
            tested = await mine.evaluation.test_at_end() if tests else {}
            watched = [await measurement.fields(comm) for measurement in mine.watched]
        finally:
            # Also after an error: its prefetch thread would go on beside the next case.
            mine.inputs.close()
        mine.journal.recorder.memory_bytes = mine.memory_bytes
        sent = mine.journal.read().bytes - before
        return {
            **await compression_fields(comm, mine, sent, WARMUP_STEPS),
            **tested,
            **(_training_gap(spec, mine) if tests and spec.sharpness and comm.rank == 0 else {}),
            **{name: value for fields in watched for name, value in fields.items()},
            "parameters": volumes(spec.layers, spec.data.shape, 1).parameters,
            "bucket_bytes": mine.bucket_bytes,
            "chosen": chosen,
            "dataset_source": mine.inputs.dataset.source,
            "dataset_digest": mine.inputs.dataset.digest,
        }

    if spec.tune is not None:
        return partial(_tune_and_train, spec, spec.tune, journal)
    if spec.network:
        return partial(simulate, spec, train, journal)

    async def train_here(comm: Comm) -> dict[str, Scalar]:
        if straggler is not None and straggler.slows(comm.rank):
            comm = Slowed(comm, Delays(straggler, comm.rank, spec.seed, journal.draw), accurate_sleep())
        return await train(comm, await spec.session(comm, journal, spec.kernels))

    return train_here


def _training_gap(spec: TrainSpec, mine: Session) -> dict[str, float | None]:
    """Return accuracy and sharpness on training images of the last tested parameters, computed by this rank."""
    kernels = spec.kernels if spec.kernels.on_host else backend("numpy")
    to_host = mine.replica.backend.to_host
    parameters, state = to_host(mine.evaluation.tested), to_host(mine.replica.state)
    layers, train = spec.trained_layers, spec.data.train
    return training_gap(layers, kernels, train, parameters, state, spec.sharpness, spec.most_images)


async def _tune_and_train(spec: TrainSpec, tuning: Tuning, journal: Journal, comm: Comm) -> dict[str, Scalar]:
    search = best_of_grid if tuning.grid else tuned
    best, record = await search(spec, tuning, partial(program, tests=False), comm)
    if tuning.batches:  # columns that follow from the batch
        record = {**fields(replace(best, tune=tuning)), **record}
    return {**await program(best, journal)(comm), **record}


async def _choose(comm: Comm, mine: Session, spec: TrainSpec) -> str:
    """Measure which schemes are best for pieces of the gradient; return those that the session now uses."""
    gradients = mine.replica.gradients
    sizes = [size for size in LADDER if size < gradients.nbytes]
    table = table_of(spec.aggregation, comm.size)
    choices = await tune(comm, [*sizes, gradients.nbytes], dtype=gradients.dtype, table=table)
    mine.aggregate = partial(spec.aggregation.bind(), choices=choices)
    return ", ".join(f"{size} B: {choices.name(size)}" for size in (*sizes, gradients.nbytes))
