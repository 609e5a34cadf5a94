"""``kind = "replay"``: a training's messages and times without its arithmetic, on the network that is there.

Ranks sleep for as long as a device would compute, and exchange vectors as long as the gradients, when and as the
strategy does: an interconnect is tested under the traffic of a training, with no device and many ranks to a core.
"""

from __future__ import annotations

from time import sleep
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl import registry
from hpcdl.cases.measuring.autotune import fitted_bucket_bytes
from hpcdl.cases.measuring.compression_record import compression_fields
from hpcdl.cases.measuring.timed_collectives import alike
from hpcdl.cases.simulation.sized_session import CheckedSums, sized_session
from hpcdl.cases.simulation.sizes import Zeros, phantoms, sizes
from hpcdl.cases.simulation.stage_balance import check_microbatches, check_stages
from hpcdl.cases.spec.choice import check_layers
from hpcdl.cases.spec.compression_check import check_exchange
from hpcdl.cases.spec.compute_times import TIMES, shape_text
from hpcdl.cases.spec.keys import about
from hpcdl.cases.spec.replay_spec import ReplaySpec
from hpcdl.cases.spec.scheme import check_dense, traits_of, try_out
from hpcdl.fabric.modelled_compute import ModelledCompute, oversleep
from hpcdl.nn.replica import Replica
from hpcdl.nn.volumes import FLOAT_BYTES, volumes
from hpcdl.training.parts.mesh import placed
from hpcdl.training.parts.model_group import ModelGroup
from hpcdl.training.parts.traits import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.trace.recorder import Scalar
    from hpcdl.training.parts.journal import Journal

MOST_SECONDS: Final = 10**6
"""Sum of the sleeps of a replay, at most: 11 days."""
COMPRESSED_COPIES: Final = 6
"""Vectors of a compressed exchange: gradient, its values, residual, two of a compressor, messages."""


SPEC: Final = ReplaySpec


def check(spec: ReplaySpec, _given: Collection[str]) -> None:
    """See :class:`hpcdl.suite.Kind`. Works out every shape, and reads the run that times are taken from."""
    source = spec.compute_source.given
    if len(source) != 1:
        raise ValueError(f"{source[1] if source else TIMES[0]}: give exactly one of {', '.join(TIMES)}")
    if spec.scale_to_batch and spec.times is None:
        raise ValueError("scale_to_batch: goes with times, which may be of another batch")
    if spec.warmup >= spec.steps:
        raise ValueError(f"warmup: {spec.warmup} of {spec.steps} steps leave none to measure")
    with about("training"):
        _check_strategy(spec)
    if spec.mesh is not None:
        with about("mesh"):
            _check_mesh(spec)
    _check_batch(spec)
    with about("model"):
        shape, layers = spec.architecture
        check_layers(layers, shape)
    with about("aggregation"):
        if spec.plan is None:
            check_dense(spec.aggregation)
        if traits_of(spec.aggregation).memory == "device":
            raise ValueError(
                f"{spec.aggregation.name!r} sums vectors on GPUs, and a replay's are in the host's memory"
            )
        try_out(spec.aggregation, spec.ranks // spec.stages)
    with about("compression"):
        _check_compression(spec)
    with about("training"):
        check_microbatches(spec, spec.images)
    with about("mesh"):
        check_stages(spec, len(layers))
    if spec.mesh is not None:
        with about("mesh"):
            spec.mesh.check_divisions(layers, shape, spec.ranks)
    with about(source[0]):
        seconds = spec.steps * spec.compute_times.step_seconds(spec.images)
        if not seconds <= MOST_SECONDS:
            raise ValueError(f"the steps would sleep for {seconds:.3g} s, and may for {MOST_SECONDS} s at most")


def _check_strategy(spec: ReplaySpec) -> None:
    """Raise ValueError for a strategy that cannot be replayed, or not with its settings."""
    if not spec.strategy.lockstep:
        able = [one for one in registry.names("training") if registry.traits("training", one, Strategy).lockstep]
        raise ValueError(f"{spec.training.name!r} cannot be replayed{registry.nearest(spec.training.name, able)}")
    spec.strategy.check(spec.ranks, spec.training.in_full)


def _check_compression(spec: ReplaySpec) -> None:
    """Raise ValueError for a compression that the strategy, the mesh or the aggregation does not allow."""
    if spec.plan is None:
        return
    if not (spec.strategy.compresses and spec.strategy.aggregates) or spec.mesh is not None:
        where = "a mesh" if spec.mesh is not None else repr(spec.training.name)
        raise ValueError(f"a replay with {where} compresses no gradients")
    check_exchange(spec.compression, spec.plan)


def _check_batch(spec: ReplaySpec) -> None:
    """Raise ValueError for a batch that is not given once, or cannot be shared equally."""
    given, copies = spec.global_batch, spec.copies
    if (given is None) == (spec.batch_per_rank is None):
        raise ValueError("global_batch: give exactly one of global_batch, batch_per_rank")
    if given is not None and given % copies:
        raise ValueError(f"global_batch: {given} images are not divisible by the {copies} copies of the network")


def _check_mesh(spec: ReplaySpec) -> None:
    """Raise ValueError for a mesh that does not fit the ranks, or that the strategy does not support."""
    assert spec.mesh is not None, "the caller checks"
    spec.mesh.groups(spec.ranks)
    if spec.stages > 1 and not spec.strategy.pipelines:
        raise ValueError(f'{spec.training.name!r} has all layers on every rank; training = "pipeline" has not')
    if spec.stages == 1 and not spec.strategy.splits_layers:
        raise ValueError(f"{spec.training.name!r} does not split layers among ranks")


def memory_bytes(spec: ReplaySpec) -> int:
    """See :class:`hpcdl.suite.Kind`: gradients, and as much again for a scheme's inbox, or for compression."""
    shape, layers = spec.architecture
    return (2 if spec.plan is None else COMPRESSED_COPIES) * FLOAT_BYTES * volumes(layers, shape, 1).parameters


def identity(spec: ReplaySpec) -> list[str]:
    """See :class:`hpcdl.suite.Kind`."""
    choices = [str(spec.model), str(spec.training), str(spec.aggregation)]
    choices += [str(spec.compression)] if spec.plan else []
    mesh = [str(on)] if spec.mesh is not None and (on := spec.mesh.on(spec.ranks)) else []
    batch = f"b{spec.global_batch}" if spec.batch_per_rank is None else f"b{spec.batch_per_rank}each"
    return [*choices, *mesh, f"p{spec.ranks}", batch, f"{spec.steps}st"]


def fields(spec: ReplaySpec) -> dict[str, Scalar]:
    """See :class:`hpcdl.suite.Kind`."""
    return {
        "model": str(spec.model),
        "training": str(spec.training),
        "aggregation": str(spec.aggregation),
        "dataset": str(spec.dataset) if spec.dataset else shape_text(spec.architecture[0]),
        "dtype": "float32",
        "compression": str(spec.compression),
        "batch_per_rank": spec.batch_per_rank,
        "global_batch": spec.images * spec.copies,
        "scaling": "strong" if spec.batch_per_rank is None else "weak",
        "threads_per_rank": spec.threads,
        "steps": spec.steps,
        "warmup_steps": spec.warmup,
        **{name: getattr(spec, name) for name in (*TIMES, "time_scale", "scale_to_batch")},
        "modelled_compute_seconds": spec.compute_times.step_seconds(spec.images),
        "parallelism": str(spec.mesh) if spec.copies < spec.ranks else None,
        "stages": spec.stages if spec.stages > 1 else None,
        "microbatches": spec.strategy.microbatches(spec.training.in_full) if spec.stages > 1 else None,
        "lockstep": spec.strategy.lockstep,
        "independent": not traits_of(spec.aggregation).sums,
    }


def program(spec: ReplaySpec, journal: Journal) -> Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]:
    """See :class:`hpcdl.suite.Kind`."""
    train = spec.training.bind()
    shape, layers = spec.architecture

    async def play(comm: Comm) -> dict[str, Scalar]:
        place = await placed(comm, spec.ranks // spec.copies)
        times = spec.rank_times[place.model.rank]
        division = spec.divisions[place.model.rank] if spec.divisions else None
        random = np.random.default_rng(comm.rank)

        def draw(size: int) -> Array:
            return random.standard_normal(size, np.float32)

        activations = phantoms if place.model.size == 1 else Zeros()
        replica = Replica(
            layers,
            shape,
            backend=sizes(np.zeros, activations, draw if spec.plan is not None else None),
            division=division,
            part=slice(None) if division is not None else spec.parts[place.model.rank],
        )
        group = None
        if spec.mesh is not None and division is not None:
            group = ModelGroup(place, division, replica, spec.mesh.exchange)
        sums = CheckedSums(spec.aggregation.bind(), summed=traits_of(spec.aggregation).sums)
        session = sized_session(
            replica,
            sums if spec.plan is None else spec.aggregation.bind(),
            journal,
            images=spec.images,
            copies=spec.copies,
            steps=spec.steps,
            bucket_bytes=await fitted_bucket_bytes(comm, sleep),
            compression=spec.plan,
            place=place,
            group=group,
        )
        gradients, compressed = replica.gradients, session.compressed

        def seconds(label: str) -> float:
            return times.seconds(label, session.inputs.group_shares[-1][1])

        before = journal.read().bytes
        await train(ModelledCompute(comm, seconds, oversleep()), session)
        sent = journal.read().bytes - before
        journal.memory(gradients.nbytes + (compressed.memory_bytes if compressed else 0))
        wrong = np.array([float(sums.wrong)])
        if compressed is not None:
            wrong[0] = not await alike(comm, gradients)
        await comm.native("allreduce", wrong)
        parameters = volumes(layers, shape, 1).parameters
        found = {"parameters": parameters, "bucket_bytes": session.bucket_bytes}
        return {
            **await compression_fields(comm, compressed, journal, sent, spec.warmup),
            **found,
            "correct": not wrong[0],
        }

    return play
