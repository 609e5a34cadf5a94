"""``kind = "train"``: train a network on a dataset by a strategy, and see how fast and how well."""

import math
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any, Final

import numpy as np

from hpcdl import registry
from hpcdl.cases.keys import combinations
from hpcdl.cases.keys.compute_times import TIMES, shape_text
from hpcdl.cases.keys.key import MAX_STEPS, about, check_cluster, check_layers
from hpcdl.cases.keys.scheme import check_library, compression_fields, table_of, traits_of, try_compressor, try_out
from hpcdl.cases.keys.train_spec import TrainSpec, Tuning
from hpcdl.cases.measuring.autotune import fitted_bucket_bytes, multiply, one_host, tune
from hpcdl.cases.simulation.step_simulation import check_simulation, simulate
from hpcdl.cases.simulation.trials import changed, tuned
from hpcdl.data.parts.sharding import EQUAL, bounds
from hpcdl.fabric.comm import Comm
from hpcdl.fabric.faults import Delays, Failure, Slowed
from hpcdl.fabric.modelled_compute import accurate_sleep
from hpcdl.launch.machine import node_memory_bytes, shortage
from hpcdl.nn.backend import backend
from hpcdl.nn.volumes import volumes
from hpcdl.trace.recorder import Scalar
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.noise_and_sharpness import training_gap
from hpcdl.training.parts.session import Session

CHECKED_STEPS: Final = 100
"""First steps whose learning rates are checked."""


def _check_faults(spec: TrainSpec) -> None:
    """Raise ValueError, led by its key, for a fault that cannot happen, ends the training or changes nothing."""
    if spec.failure is not None and not 0 <= spec.failure.rank < spec.ranks:
        raise ValueError(f"failure: rank {spec.failure.rank} is not among the {spec.ranks} ranks of the case")
    spec.check_straggler()
    if idle := [rank for rank in (spec.straggler.paused if spec.straggler else ()) if rank not in spec.workers]:
        able = f"these have: {spec.workers[0]} to {spec.workers[-1]}"
        raise ValueError(f"straggler: rank: rank {idle[0]} has no batches to pause before; {able}")
    if spec.failure is not None:
        with about("failure"):
            _check_failure(spec.failure, spec)


def _check_failure(failure: Failure, spec: TrainSpec) -> None:
    name, traits, settings = spec.training.name, spec.strategy, spec.training.in_full
    may_fail = traits.may_fail(spec.ranks, settings) if traits.may_fail else range(0)
    others = [rank for rank in may_fail if rank]  # rank 0 keeps the record
    if failure.rank not in others:
        able = f"these may fail: {others[0]} to {others[-1]}" if others else "with such settings none may fail"
        raise ValueError(f"rank: {name!r} does not go on without rank {failure.rank}; {able}")
    most = spec.planned_steps * traits.most_steps(spec.ranks, settings)
    if failure.step >= most:
        raise ValueError(f"step: {failure.step}, but no rank of this training takes more than {most} steps")


def check(spec: TrainSpec, given: Collection[str]) -> None:
    """Open the dataset and work out every shape. Raises ValueError, led by the key, for what cannot run."""
    for key, other in (("global_batch", "batch_per_rank"), ("epochs", "steps")):
        if (getattr(spec, key) is None) == (getattr(spec, other) is None):
            raise ValueError(f"{key}: give exactly one of {key} and {other}")
    with about("mesh"):
        replicas = spec.replicas
    with about("training"):
        spec.strategy.check_settings(replicas, spec.training.in_full)
    _check_divisible(spec)
    with about("dataset"):
        if not len(spec.data.test):
            raise ValueError(f"{spec.data.name} has no test images")
    batch_key = "batch_per_rank" if spec.global_batch is None else "global_batch"
    if spec.images_per_step > (images := len(spec.data.train)):
        raise ValueError(f"{batch_key}: {spec.images_per_step} images a step, but {spec.data.name} has {images}")
    with about("epochs" if spec.steps is None else "steps"):
        if spec.planned_steps > MAX_STEPS:
            raise ValueError(f"are {spec.planned_steps} steps, and must be at most {MAX_STEPS}")
    with about("backend"):
        kernels = spec.kernels
    combinations.check("train", spec, given)
    check_cluster(spec)
    with about("dtype"):
        kernels.check_precision(spec.dtype)
    with about("model"):
        if (shape := check_layers(spec.layers, spec.data.shape)) != (spec.data.classes,):
            raise ValueError(f"ends in {shape}, but {spec.data.name} has {spec.data.classes} classes")
    with about("optimizer"):
        rule = spec.optimizer.make()
        _ = rule.update, rule.state, rule.steps, rule.look_ahead  # a user's own may lack one
    with about("schedule"):
        _check_rates(spec)
    with about("training"):
        spec.strategy.check_rates(spec.rate, spec.planned_steps, spec.training.in_full)
    if spec.sharing != EQUAL:
        _check_shares(spec)
    check_simulation(spec)
    _check_trials(spec)
    spec.check_stages(int(np.diff(bounds(spec.images_per_step, spec.copies, spec.sharing)).min()))
    with about("mesh"):
        _check_divisions(spec)
    with about(batch_key):
        if (line := shortage(memory_bytes(spec), 1, node_memory_bytes())) is not None:
            raise ValueError(f"{spec.most_images} images a rank: {line}")
    if spec.strategy.aggregates:
        with about("aggregation"):
            check_library(spec.aggregation, spec.network)
            if not traits_of(spec.aggregation).sparse:
                try_out(spec.aggregation, spec.ranks // spec.stages)
    with about("compression"):
        if spec.plan is not None:
            spec.strategy.check_compression(spec.plan, spec.training.in_full)
        try_compressor(spec.compression, spec.plan)
    _check_faults(spec)
    if spec.sharpness > images:
        raise ValueError(f"sharpness: {spec.sharpness} images, but {spec.data.name} has {images}")


def _check_trials(spec: TrainSpec) -> None:
    """Raise ValueError, led by its key, for settings of a trial that optimizer or strategy does not take."""
    if spec.tune is None:
        return
    with about("tune"):
        if spec.tune.optimizer and spec.strategy.optimizer:
            raise ValueError(f"optimizer: {spec.training.name!r} has its own optimizer")
        for settings in spec.tune.points():
            trial = changed(spec, settings)
            trial.optimizer.check()
            trial.training.check(None)
            trial.optimizer.make()
            trial.strategy.check_settings(trial.replicas, trial.training.in_full)


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


def _check_rates(spec: TrainSpec) -> None:
    """Raise ValueError if the learning rate is no finite number at some step, or soon after the last one."""
    length = spec.planned_steps
    # schedules are monotone between the end of their warm-up and their last step
    for step in sorted({*range(min(length, CHECKED_STEPS)), length // 2, length - 1, length, 2 * length}):
        if not math.isfinite(value := spec.rate(step)):
            raise ValueError(f"the learning rate is {value} at step {step}")


def _check_divisible(spec: TrainSpec) -> None:
    ranks, number, batch = spec.ranks, spec.copies, spec.images_per_step
    if batch % number:
        below, above = batch // number * number, -(-batch // number) * number
        noun = "workers" if number == len(spec.workers) else "copies of the network"
        by = f"ranks = {ranks}" if number == ranks else f"the {number} {noun} among {ranks} ranks"
        raise ValueError(f"global_batch: {batch} is not divisible by {by}; {below or above} and {above} are")


def _check_shares(spec: TrainSpec) -> None:
    batch, number, weights = spec.images_per_step, len(spec.workers), spec.sharing.weights
    if len(weights) > number:
        raise ValueError(f"shares: weights: {len(weights)} of them, but {number} to share a batch")
    images = np.diff(bounds(batch, number, spec.sharing))
    if not images.all():
        rank = spec.workers[int(images.argmin())]
        raise ValueError(f"shares: weights: with {spec.sharing} rank {rank} would receive 0 of {batch} images")


def _check_divisions(spec: TrainSpec) -> None:
    """Raise ValueError for layers that cannot be split so, or not with the strategy."""
    if spec.mesh is None or spec.model_ranks == 1:
        return
    spec.mesh.check_divisions(spec.layers, spec.shape, spec.ranks)
    whole = [name for division in spec.divisions for name in division.whole]
    if whole and not spec.strategy.aggregates:
        shards = f"{spec.training.name!r} has one shard for each parameter"
        raise ValueError(f"{shards}, but every rank of a model group has all of {whole[0]}")


WARMUP_STEPS: Final = 2
"""Steps at the start whose times are kept but not counted: first touch of memory, first connection of peers."""

LADDER: Final = tuple(1 << power for power in range(12, 31, 3))
"""Bytes at which ``auto`` measures schemes, and at the whole gradient's."""

SPEC: Final = TrainSpec


def identity(spec: TrainSpec) -> list[str]:
    names = [str(spec.model), str(spec.dataset), str(spec.training)]
    names += [str(spec.aggregation)] if spec.strategy.aggregates else []
    names += [str(spec.compression)] if spec.plan else []
    batch = f"b{spec.global_batch}" if spec.batch_per_rank is None else f"b{spec.batch_per_rank}each"
    length = f"{spec.epochs:g}ep" if spec.steps is None else f"{spec.steps}st"
    return [*names, *spec.mesh_name, f"p{spec.ranks}", batch, length]


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
        "tuning": spec.tune and spec.tune.trials,
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
            watched = [await one.fields(comm) for one in mine.watched]
        finally:
            # Also after an error: its prefetch thread would go on beside the next case.
            mine.inputs.close()
        mine.journal.memory(mine.memory_bytes)
        mine.journal.residuals(mine.compressed.norms.rows() if mine.compressed is not None else ())
        sent = mine.journal.read().bytes - before
        return {
            **await compression_fields(
                comm, mine.compressed, mine.journal, sent, WARMUP_STEPS, among_activations=mine.group is not None
            ),
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
    best, record = await tuned(spec, tuning, partial(program, tests=False), comm)
    return {**await program(best, journal)(comm), **record}


async def _choose(comm: Comm, mine: Session, spec: TrainSpec) -> str:
    """Measure which schemes are best for pieces of the gradient; return those that the session now uses."""
    gradients = mine.replica.gradients
    sizes = [size for size in LADDER if size < gradients.nbytes]
    table = table_of(spec.aggregation, comm.size)
    choices = await tune(comm, [*sizes, gradients.nbytes], dtype=gradients.dtype, table=table)
    mine.aggregate = partial(spec.aggregation.bind(), choices=choices)
    return ", ".join(f"{size} B: {choices.name(size)}" for size in (*sizes, gradients.nbytes))
