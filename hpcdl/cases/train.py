"""``kind = "train"``: train a network on a dataset by a strategy, and see how fast and how well."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hpcdl import registry
from hpcdl.analysis.run.record_fields import OWN
from hpcdl.cases.measuring.autotune import fitted_bucket_bytes, multiply, one_host, tune
from hpcdl.cases.measuring.compression_record import compression_fields
from hpcdl.cases.simulation.virtual_training import simulate
from hpcdl.cases.spec.compute_times import TIMES, shape_text
from hpcdl.cases.spec.scheme import traits_of
from hpcdl.cases.spec.train_check import check, memory_bytes
from hpcdl.cases.spec.train_spec import TrainSpec
from hpcdl.data.parts.sharding import EQUAL
from hpcdl.fabric.faults import Delays, Slowed
from hpcdl.fabric.modelled_compute import accurate_sleep
from hpcdl.nn.volumes import volumes
from hpcdl.training.parts.mesh import placed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hpcdl.fabric.comm import Comm
    from hpcdl.trace.recorder import Scalar
    from hpcdl.training.parts.journal import Journal
    from hpcdl.training.parts.session import Session

__all__ = ["SPEC", "check", "fields", "identity", "memory_bytes", "program"]

WARMUP_STEPS: Final = 2
"""Steps at the start whose times are kept but not counted: first touch of memory, first connection of peers."""

LADDER: Final = tuple(1 << power for power in range(12, 31, 3))
"""Bytes at which ``auto`` measures schemes, and at the whole gradient's."""

SPEC: Final = TrainSpec


def identity(spec: TrainSpec) -> list[str]:
    """See :class:`hpcdl.suite.Kind`."""
    names = [str(spec.model), str(spec.dataset), str(spec.training)]
    names += [str(spec.aggregation)] if spec.strategy.aggregates else []
    names += [str(spec.compression)] if spec.plan else []
    batch = f"b{spec.global_batch}" if spec.batch_per_rank is None else f"b{spec.batch_per_rank}each"
    length = f"{spec.epochs:g}ep" if spec.steps is None else f"{spec.steps}st"
    return [*names, *spec.mesh_name, f"p{spec.ranks}", batch, length]


def fields(spec: TrainSpec) -> dict[str, Scalar]:
    """See :class:`hpcdl.suite.Kind`."""
    choices = ("model", "dataset", "backend", "training", "compression", "schedule")
    plain = ("dtype", "learning_rate", "epochs", "target_accuracy", "batch_per_rank", "network")
    simulated = ("ranks_per_host", "jitter", *TIMES) if spec.network else ()
    return {
        **{key: str(getattr(spec, key)) for key in choices},
        "image_shape": shape_text(spec.data.shape),
        "optimizer": spec.strategy.optimizer or str(spec.optimizer),
        **{key: getattr(spec, key) for key in plain},
        "aggregation": str(spec.aggregation) if spec.strategy.aggregates else OWN,
        "global_batch": spec.images_per_step,
        "parallelism": str(spec.mesh) if spec.mesh is not None and spec.mesh.group_ranks(spec.ranks) > 1 else None,
        "shares": None if spec.sharing == EQUAL else str(spec.sharing),
        "scaling": "strong" if spec.batch_per_rank is None else "weak",
        "threads_per_rank": spec.threads,
        "steps": spec.planned_steps,
        "warmup_steps": 0 if spec.network else min(WARMUP_STEPS, spec.planned_steps - 1),
        **{key: getattr(spec, key) for key in simulated},
        **(spec.straggler.fields if spec.straggler else {"straggler": None}),
        "failure": str(spec.failure) if spec.failure else None,
        "lockstep": spec.strategy.lockstep,
        "independent": spec.independent,
        "stages": spec.stages if spec.stages > 1 else None,
        "microbatches": spec.microbatches if spec.stages > 1 else None,
        "activation_bytes_per_rank": max(outputs for _, outputs in spec.stage_bytes),
        "served": spec.strategy.served,
        "gradients_in_flight": spec.strategy.gradients_in_flight(spec.training.in_full),
        "system": spec.strategy.title(spec.replicas, spec.training.in_full),
    }


def program(spec: TrainSpec, journal: Journal) -> Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]:
    """See :class:`hpcdl.suite.Kind`."""
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
        finally:
            mine.inputs.close()
        mine.journal.memory(mine.memory_bytes)
        mine.journal.residuals(mine.compressed.norms.rows() if mine.compressed is not None else ())
        sent = mine.journal.read().bytes - before
        return {
            **await compression_fields(
                comm, mine.compressed, mine.journal, sent, WARMUP_STEPS, among_activations=mine.group is not None
            ),
            "parameters": volumes(spec.layers, spec.data.shape, 1).parameters,
            "bucket_bytes": mine.bucket_bytes,
            "chosen": chosen,
            "dataset_source": mine.inputs.dataset.source,
            "dataset_digest": mine.inputs.dataset.digest,
        }

    if spec.network:
        return partial(simulate, spec, train, journal)

    async def train_here(comm: Comm) -> dict[str, Scalar]:
        if straggler is not None and comm.rank == straggler.rank:
            comm = Slowed(comm, Delays(straggler, spec.seed), pause=accurate_sleep())
        group = spec.stages * spec.model_ranks
        place = await placed(comm, group) if group > 1 else None
        return await train(comm, spec.session(journal, comm.memory.allocate, place, rank=comm.rank))

    return train_here


async def _choose(comm: Comm, mine: Session, spec: TrainSpec) -> str:
    """Measure which schemes are best for pieces of the gradient; return those that the session now uses."""
    gradients = mine.replica.gradients
    sizes = [size for size in LADDER if size < gradients.nbytes]
    choices = await tune(comm, [*sizes, gradients.nbytes], dtype=gradients.dtype)
    mine.aggregate = partial(spec.aggregation.bind(), choices=choices)
    return ", ".join(f"{size} B: {choices.name(size)}" for size in (*sizes, gradients.nbytes))
