"""Checks of a training case before anything runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.cases.simulation import virtual_training
from hpcdl.cases.spec import combinations
from hpcdl.cases.spec.choice import check_layers
from hpcdl.cases.spec.keys import MOST_STEPS, about
from hpcdl.cases.spec.scheme import check_library, traits_of, try_compressor, try_out
from hpcdl.data.parts.dataset import Dataset
from hpcdl.data.parts.sharding import EQUAL, bounds
from hpcdl.launch.machine import node_memory_bytes, shortage
from hpcdl.nn.volumes import volumes

if TYPE_CHECKING:
    from collections.abc import Collection

    from hpcdl.cases.spec.train_spec import TrainSpec
    from hpcdl.fabric.faults import Failure, Straggler


KEEPER: Final = "rank 0 keeps the record and cannot fail"


def _check_faults(spec: TrainSpec) -> None:
    """Raise ValueError, led by its key, for a fault that cannot happen, ends the training or changes nothing."""
    if spec.straggler is not None:
        with about("straggler"):
            _check_rank(spec.straggler.rank, spec.ranks)
            _check_pauses(spec.straggler, spec.workers)
    if spec.failure is not None:
        with about("failure"):
            _check_rank(spec.failure.rank, spec.ranks)
            _check_failure(spec.failure, spec)


def _check_rank(rank: int, ranks: int) -> None:
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not among the {ranks} ranks of the case")


def _check_pauses(straggler: Straggler, workers: range) -> None:
    rank = straggler.rank
    if straggler.probability and rank not in workers:
        able = f"these have: {workers[0]} to {workers[-1]}"
        raise ValueError(f"rank: rank {rank} has no batches to pause before; {able}")


def _check_failure(failure: Failure, spec: TrainSpec) -> None:
    name, traits, settings = spec.training.name, spec.strategy, spec.training.in_full
    may_fail = traits.may_fail(spec.ranks, settings) if traits.may_fail else range(0)
    others = may_fail[1:] if 0 in may_fail else may_fail
    if failure.rank not in others:
        able = f"these may fail: {others[0]} to {others[-1]}" if others else "with such settings none may fail"
        why = f"{name!r} does not go on without rank {failure.rank}" if failure.rank else KEEPER
        raise ValueError(f"rank: {why}; {able}")
    most = spec.planned_steps * traits.most_steps(spec.ranks, settings)
    if failure.step >= most:
        raise ValueError(f"step: {failure.step}, but no rank of this training takes more than {most} steps")


OPTIMIZER: Final = ("update", "state", "steps", "look_ahead")
"""Attributes of every optimizer, a user's own too: see :class:`hpcdl.optim.parts.protocol.Optimizer`."""
LOOKED_AT: Final = 100
"""First steps whose learning rates are checked."""


def check(spec: TrainSpec, given: Collection[str]) -> None:
    """Open the dataset and work out every shape. Raises ValueError, led by the key, for what cannot run."""
    for one, other in (("global_batch", "batch_per_rank"), ("epochs", "steps")):
        if (getattr(spec, one) is None) == (getattr(spec, other) is None):
            raise ValueError(f"{one}: give exactly one of {one} and {other}")
    with about("mesh"):
        replicas = spec.replicas
    with about("training"):
        spec.strategy.check(replicas, spec.training.in_full)
    _check_divisible(spec)
    if spec.target_accuracy is None and spec.stop_at_target:
        raise ValueError("stop_at_target: there is no target_accuracy to stop at")
    with about("dataset"):
        if not isinstance(spec.data, Dataset):
            raise TypeError(f"{spec.dataset.name!r} makes a {type(spec.data).__name__}, not a Dataset")
        if not len(spec.data.test):
            raise ValueError(f"{spec.data.name} has no test images")
    if spec.images_per_step > (images := len(spec.data.train)):
        raise ValueError(f"global_batch: {spec.images_per_step} images a step, but {spec.data.name} has {images}")
    with about("epochs" if spec.steps is None else "steps"):
        if spec.planned_steps > MOST_STEPS:
            raise ValueError(f"are {spec.planned_steps} steps, and must be at most {MOST_STEPS}")
    with about("backend"):
        kernels = spec.kernels
    combinations.check("train", spec, given)
    with about("dtype"):
        kernels.check_precision(spec.dtype)
    with about("model"):
        if (shape := check_layers(spec.layers, spec.data.shape)) != (spec.data.classes,):
            raise ValueError(f"ends in {shape}, but {spec.data.name} has {spec.data.classes} classes")
    with about("optimizer"):
        rule = spec.optimizer.make()
        if lacking := ", ".join(name for name in OPTIMIZER if not hasattr(rule, name)):
            kind = type(rule).__name__
            raise TypeError(f"{spec.optimizer.name!r} makes a {kind}, not an optimizer: it lacks {lacking}")
    with about("schedule"):
        _check_rates(spec)
    with about("training"):
        spec.strategy.check_rates(spec.rate, spec.planned_steps, spec.training.in_full)
    _check_shares(spec)
    virtual_training.check(spec)
    spec.check_stages(int(np.diff(bounds(spec.images_per_step, spec.copies, spec.sharing)).min()))
    with about("mesh"):
        _check_divisions(spec)
    with about("batch_per_rank" if spec.global_batch is None else "global_batch"):
        if (line := shortage(memory_bytes(spec), 1, node_memory_bytes())) is not None:
            raise ValueError(f"{spec.most_images} images a rank: {line}")
    if spec.strategy.aggregates:
        with about("aggregation"):
            check_library(spec.aggregation)
            if not traits_of(spec.aggregation).sparse:
                try_out(spec.aggregation, spec.ranks // spec.stages)
    with about("compression"):
        if spec.plan is not None:
            spec.strategy.check_compression(spec.plan, spec.training.in_full)
        try_compressor(spec.compression, spec.plan)
    _check_faults(spec)


def memory_bytes(spec: TrainSpec) -> int:
    """Return the bytes of parameters, gradients and activations of a rank, of all ranks where they are simulated.

    0 where they are on a device.
    """
    if not spec.kernels.on_host:
        return 0
    if spec.network:
        pipelines, training = spec.ranks // spec.stages, len(spec.workers)
        return sum(pipelines * 2 * weights + training * outputs for weights, outputs in spec.stage_bytes)
    if (division := spec.division(0)) is not None:
        ((weights, outputs),) = spec.stage_bytes
        whole = volumes(spec.layers, spec.data.shape, 1).parameters
        return 2 * weights * division.parameters // whole + outputs
    return max(2 * weights + outputs for weights, outputs in spec.stage_bytes)


def _check_rates(spec: TrainSpec) -> None:
    """Raise ValueError if the learning rate is no finite number at some step, or soon after the last one."""
    length = spec.planned_steps
    # schedules are monotone between the end of their warm-up and their last step
    for step in sorted({*range(min(length, LOOKED_AT)), length // 2, length - 1, length, 2 * length}):
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
    if spec.sharing == EQUAL:
        return
    with about("shares"):
        batch, number, weights = spec.images_per_step, len(spec.workers), spec.sharing.weights
        if len(weights) > number:
            raise ValueError(f"weights: {len(weights)} of them, but {number} to share a batch")
        images = np.diff(bounds(batch, number, spec.sharing))
        if not images.all():
            rank = spec.workers[int(images.argmin())]
            raise ValueError(f"weights: with {spec.sharing} rank {rank} would receive 0 of {batch} images")


def _check_divisions(spec: TrainSpec) -> None:
    """Raise ValueError for layers that cannot be split so, or not with the strategy."""
    if spec.mesh is None or spec.model_ranks == 1:
        return
    spec.mesh.check_divisions(spec.layers, spec.shape, spec.ranks)
    whole = [name for division in spec.divisions for name in division.whole]
    if whole and not spec.strategy.aggregates:
        shards = f"{spec.training.name!r} has one shard for each parameter"
        raise ValueError(f"{shards}, but every rank of a model group has all of {whole[0]}")
