"""``kind = "replay"``: a training's messages and times without its arithmetic, on the network that is there.

Ranks sleep for as long as a device would compute, and exchange vectors as long as the gradients, when and as the
strategy does: an interconnect is tested under the traffic of a training, with no device and many ranks to a core.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from time import sleep
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl import registry
from hpcdl.cases.parts.architecture import architecture, check_layers
from hpcdl.cases.parts.choice import Choice
from hpcdl.cases.parts.compute_times import DEVICES, TIMES, ComputeSource, ComputeTimes, shape_text
from hpcdl.cases.parts.divided_stand_ins import divided_replica
from hpcdl.cases.parts.division_times import times_of_ranks
from hpcdl.cases.parts.keys import MOST_RANKS, MOST_STEPS, MOST_THREADS, about, key
from hpcdl.cases.parts.link_probes import fitted_bucket_bytes
from hpcdl.cases.parts.scheme import check_dense, traits_of, try_out
from hpcdl.cases.parts.stage_balance import balanced, check_microbatches, check_stages
from hpcdl.cases.parts.stand_ins import Session, replica
from hpcdl.fabric.modelled_compute import ModelledCompute, oversleep
from hpcdl.nn.volumes import FLOAT_BYTES, volumes
from hpcdl.training.parts.mesh import Mesh, placed
from hpcdl.training.parts.model_group import ModelGroup
from hpcdl.training.parts.traits import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from hpcdl.fabric.comm import Comm
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer
    from hpcdl.nn.split.division import Division
    from hpcdl.trace.record import Scalar
    from hpcdl.training.parts.journal import Journal

MOST_SECONDS: Final = 10**6
"""Sum of the sleeps of a replay, at most: 11 days."""
MOST_IMAGES: Final = 10**9
"""Images of a rank's batch, at most."""


@dataclass(frozen=True, kw_only=True)
class ReplaySpec:
    """Keys of a replay; properties raise ValueError for settings that cannot be."""

    model: Choice = key(folder="models")
    dataset: Choice | None = key(None, folder="datasets")
    training: Choice = key(Choice("training", "synchronous"), folder="training")
    aggregation: Choice = key(Choice("aggregation", "ring"), folder="aggregation")
    ranks: int = key(least=1, most=MOST_RANKS)
    batch_per_rank: int | None = key(None, least=1, most=MOST_IMAGES)
    global_batch: int | None = key(None, least=1, most=MOST_IMAGES)
    mesh: Mesh | None = key(None, table=Mesh)
    steps: int = key(20, least=1, most=MOST_STEPS)
    warmup: int = key(2, least=0)
    device: str | None = key(None, choices=tuple(DEVICES))
    flops: float | None = key(None, above=0)
    times: str | None = key(None)
    time_scale: float = key(1.0, above=0)
    scale_to_batch: bool = key(default=False)
    threads: int = key(1, least=1, most=MOST_THREADS)
    trace: str = key("events", choices=("events", "steps", "alternating"))

    @cached_property
    def architecture(self) -> tuple[Shape, Sequence[Layer]]:
        """The shape of images, and the layers."""
        return architecture(self.model, self.dataset)

    @cached_property
    def strategy(self) -> Strategy:
        """Traits of the strategy."""
        return registry.traits("training", self.training.name, Strategy)

    @property
    def stages(self) -> int:
        """Ranks among which the layers are divided; 1: each rank has all of them."""
        return 1 if self.mesh is None else self.mesh.pipeline

    @cached_property
    def parts(self) -> tuple[slice, ...]:
        """Layers of each stage: contiguous, the slowest as fast as possible."""
        shape, layers = self.architecture
        return balanced(layers, shape, self.stages, self.compute_times)

    @property
    def model_ranks(self) -> int:
        """Ranks among which each layer is split; 1 if layers are whole."""
        return 1 if self.mesh is None else self.mesh.groups(self.ranks)[1]

    @property
    def copies(self) -> int:
        """Number of copies of the network; each is on one rank, or on a pipeline or a model group."""
        return self.ranks // (self.stages * self.model_ranks)

    @property
    def images(self) -> int:
        """Images of a copy's batch."""
        if self.global_batch is not None:
            return self.global_batch // self.copies
        return (self.batch_per_rank or 0) * self.model_ranks

    @cached_property
    def divisions(self) -> tuple[Division, ...]:
        """Parts of the layers of each rank of a model group; empty if layers are not split."""
        shape, layers = self.architecture
        return () if self.mesh is None else self.mesh.divisions(layers, shape, self.ranks)

    @property
    def rank_times(self) -> tuple[ComputeTimes, ...]:
        """Times of each rank of a pipeline or of a model group, by its place in it."""
        _, layers = self.architecture
        if self.mesh is not None and self.divisions:
            return times_of_ranks(self.compute_times, layers, self.divisions, self.images, self.mesh.exchange)
        return self.compute_times.of_stages(layers, self.parts)

    @property
    def compute_source(self) -> ComputeSource:
        """Source of the times of work."""
        return ComputeSource(self.device, self.flops, self.times)

    @cached_property
    def compute_times(self) -> ComputeTimes:
        """Times of the work of a rank."""
        shape, layers = self.architecture
        images = None if self.scale_to_batch else self.images
        found = self.compute_source.compute_times(str(self.model), layers, shape, images)
        return found.scaled(self.time_scale)


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
        check_dense(spec.aggregation)
        if traits_of(spec.aggregation).memory == "device":
            raise ValueError(
                f"{spec.aggregation.name!r} sums vectors on GPUs, and a replay's are in the host's memory"
            )
        try_out(spec.aggregation, spec.ranks // spec.stages)
    with about("training"):
        check_microbatches(spec, spec.images)
    with about("mesh"):
        check_stages(spec, len(layers))
    if spec.mesh is not None and spec.model_ranks > 1:
        with about("mesh"):
            spec.mesh.check_passes(spec.divisions)
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
    """See :class:`hpcdl.suite.Kind`: gradients, and as much again for a scheme's inbox."""
    shape, layers = spec.architecture
    return 2 * FLOAT_BYTES * volumes(layers, shape, 1).parameters


def identity(spec: ReplaySpec) -> list[str]:
    """See :class:`hpcdl.suite.Kind`."""
    choices = [str(spec.model), str(spec.training), str(spec.aggregation)]
    mesh = [str(spec.mesh)] if spec.mesh is not None else []
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
        "compression": "none",
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
        summed = traits_of(spec.aggregation).sums
        place = await placed(comm, spec.ranks // spec.copies)
        times, group = spec.rank_times[place.model.rank], None
        stand_in: Any
        if spec.mesh is not None and spec.divisions:
            division = spec.divisions[place.model.rank]
            stand_in, marks = divided_replica(division, place, comm.rank, comm.size, summed=summed)
            group = ModelGroup(place, division, stand_in, spec.mesh.exchange)
        else:
            part = spec.parts[place.model.rank]
            stand_in, one = replica(layers, shape, place.group, spec.copies, summed=summed, part=part)
            marks = [one]
        session = Session(
            stand_in,
            aggregate=spec.aggregation.bind(),
            journal=journal,
            batch_per_rank=spec.images,
            global_batch=spec.images * spec.copies,
            place=place,
            group=group,
            steps=spec.steps,
            bucket_bytes=await fitted_bucket_bytes(comm, sleep),
        )

        def seconds(label: str) -> float:
            return times.seconds(label, session.group_shares[-1][1])

        await train(ModelledCompute(comm, seconds, oversleep()), session)
        journal.memory(stand_in.gradients.nbytes)
        wrong = np.array([float(sum(one.wrong for one in marks))])
        await comm.native("allreduce", wrong)
        parameters = volumes(layers, shape, 1).parameters
        found = {"parameters": parameters, "bucket_bytes": session.bucket_bytes}
        return {**found, "correct": not wrong[0]}

    return play
