"""Properties that kinds of case with training steps derive from their keys; layers of a pipeline's stages."""

import math
from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, pairwise
from math import inf
from typing import Any, Self

import numpy as np

from hpcdl import registry
from hpcdl.cases.keys.compute_times import (
    DEVICES,
    TIMES,
    ComputeTimes,
    at_rate,
    saved,
    shape_text,
    shipped,
    times_of_ranks,
)
from hpcdl.cases.keys.key import Choice, architecture, cluster
from hpcdl.cases.keys.scheme import plan, traits_of
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.faults import Straggler
from hpcdl.fabric.network import Network
from hpcdl.fabric.vectors import sizes_only
from hpcdl.nn.backend import Backend
from hpcdl.nn.geometry import Shape, master
from hpcdl.nn.layer import Layer, SizedLayer
from hpcdl.nn.replica import Replica
from hpcdl.nn.split.division import Division
from hpcdl.nn.volumes import volumes
from hpcdl.optim.parts.protocol import Optimizer
from hpcdl.trace.recorder import Scalar
from hpcdl.training.parts.inputs import Inputs, NoUpdates, SizedInputs
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.mesh import Mesh, ModelGroup, Place, placed
from hpcdl.training.parts.plan import Plan, of_sizes
from hpcdl.training.parts.session import Evaluation, Session
from hpcdl.training.parts.traits import BY_STRATEGY, Strategy


def partition(times: Sequence[float], parts: int, volumes: Sequence[float]) -> tuple[slice, ...]:
    """Return ``parts`` consecutive, non-empty slices of the layers; the longest takes the least time possible.

    ``times`` are those of the layers. ``volumes`` are the sizes of their outputs: of all such partitions the one
    is returned that passes the least from stage to stage. Dynamic programming, O(parts x layers^2); PipeDream's
    partition (Narayanan et al. 2019, section 3.1) without replicated stages. Exact.

    ValueError: more parts than layers, or none.
    """
    layers = len(times)
    if not 1 <= parts <= layers:
        raise ValueError(f"{layers} layers make 1 to {layers} stages, not {parts}")
    until = [*accumulate(times, initial=0.0)]

    def time(begin: int, end: int) -> float:
        return until[end] - until[begin]

    longest, _ = _best(layers, parts, lambda before, begin, end: max(before, time(begin, end)))

    def passed(before: float, begin: int, end: int) -> float:
        if time(begin, end) > longest:
            return inf
        return before + (volumes[begin - 1] if begin else 0.0)

    _, cuts = _best(layers, parts, passed)
    return tuple(slice(begin, end) for begin, end in pairwise(cuts))


def _best(layers: int, parts: int, cost: Callable[[float, int, int], float]) -> tuple[float, list[int]]:
    """Return the least cost of a partition and its cuts, (parts + 1,).

    ``cost(before, begin, end)`` is the cost of a partition of the first ``end`` layers whose last part begins at
    ``begin`` and whose other parts cost ``before``.
    """
    least = [[inf] * (layers + 1) for _ in range(parts + 1)]
    chosen = [[0] * (layers + 1) for _ in range(parts + 1)]
    least[0][0] = 0.0
    for part in range(1, parts + 1):
        for end in range(part, layers + 1):
            for begin in range(part - 1, end):
                total = cost(least[part - 1][begin], begin, end)
                if total < least[part][end]:
                    least[part][end], chosen[part][end] = total, begin
    cuts = [layers]
    for part in range(parts, 0, -1):
        cuts.append(chosen[part][cuts[-1]])
    return least[parts][layers], cuts[::-1]


def balanced(
    layers: Sequence[Layer], shape: Shape, stages: int, times: ComputeTimes | None = None
) -> tuple[slice, ...]:
    """Return the layers of each stage; ``times`` are those of layers, by default in proportion to multiply-adds.

    ValueError: more stages than layers, or a layer without a time.
    """
    if stages == 1:
        return (slice(0, len(layers)),)
    of = times or at_rate(layers, shape, 1.0)
    seconds = [
        of.seconds(f"forward {layer.name}", 1) + of.seconds(f"backward {layer.name}", 1) for layer in layers
    ]
    _, *shapes = accumulate(layers, lambda shape, layer: layer.output(shape), initial=shape)
    return partition(seconds, stages, [*map(math.prod, shapes)])


@dataclass(frozen=True)
class SizedSteps:
    """Steps of replicas of sizes, each with ``images`` images for a copy of the network."""

    images: int
    steps: int
    _replicas: dict[int, Replica] = field(default_factory=dict)
    """By stage: replicas of sizes are equal, and take long to make."""

    def replica(self, place: Place | None, make: Callable[[], Replica]) -> Replica:
        """Return a copy of the stage's replica, which ``make`` makes for the first rank that has it."""
        stage = 0 if place is None else place.model.rank
        if stage not in self._replicas:
            self._replicas[stage] = make()
        replica = copy(self._replicas[stage])
        replica.stages = tuple(map(copy, replica.stages))
        return replica


class StepSpec:
    """Objects made of the keys of a case; properties raise ValueError for settings that cannot be.

    Subclasses are dataclasses; a key that a kind does not have keeps its value here.
    """

    model: Choice
    dataset: Any
    training: Choice
    aggregation: Any
    compression: Choice
    ranks: int
    mesh: Mesh | None = None
    network: str | None = None
    topology: Choice | None = None
    ranks_per_host: int = 1
    dtype: str = "float32"
    batch_per_rank: int | None
    global_batch: int | None
    threads: int
    device: str | None = None
    flops: float | None
    times: str | None
    straggler: Straggler | None = None
    seed: int = 0
    update_rule: Callable[[Replica], Optimizer]
    rate: Callable[[int], float]
    """Learning rate of a step."""
    inputs: Callable[[Replica, ModelGroup | None], Inputs]

    @cached_property
    def architecture(self) -> tuple[Shape, Sequence[Layer]]:
        """The shape of images, and the layers."""
        return architecture(self.model, self.dataset)

    @property
    def shape(self) -> Shape:
        """The shape of images."""
        return self.architecture[0]

    @property
    def layers(self) -> Sequence[Layer]:
        """The model for such images."""
        return self.architecture[1]

    @property
    def outputs(self) -> Shape:
        """The shape of the last layer's outputs. Raises ValueError for layers that do not fit."""
        shape = self.shape
        for layer in self.layers:
            layer.declare(shape)
            shape = layer.output(shape)
        return shape

    @property
    def table(self) -> list[SizedLayer]:
        """Layers that have sizes and no arithmetic; empty for a network that can be trained."""
        return [layer for layer in self.layers if isinstance(layer, SizedLayer)]

    @cached_property
    def strategy(self) -> Strategy:
        """Traits of the strategy."""
        return registry.traits("training", self.training.name, Strategy)

    @cached_property
    def independent(self) -> bool:
        """True if ranks exchange nothing."""
        return self.strategy.aggregates and not traits_of(self.aggregation).sums

    @cached_property
    def plan(self) -> Plan | None:
        """Compression of gradients; None if there is none."""
        return plan(self.compression, self.aggregation)

    @property
    def stages(self) -> int:
        """Ranks among which the layers are divided; 1: each rank has all of them."""
        return 1 if self.mesh is None else self.mesh.pipeline

    @cached_property
    def parts(self) -> tuple[slice, ...]:
        """Layers of each stage: contiguous, the slowest as fast as possible by the modelled times."""
        times = self.compute_times if self.times_given else None
        return balanced(self.layers, self.shape, self.stages, times)

    def with_parts(self, parts: tuple[slice, ...]) -> Self:
        """Return the case with these layers of each stage: predictions balance them by measured times."""
        other = copy(self)
        vars(other)["parts"] = parts
        return other

    @property
    def microbatches(self) -> int:
        """Parts of a worker's batch that pass through the layers in turn."""
        return self.strategy.microbatches(self.training.in_full)

    @property
    def model_ranks(self) -> int:
        """Ranks among which each layer is split; 1 if layers are whole."""
        return 1 if self.mesh is None else self.mesh.groups(self.ranks)[1]

    @property
    def replicas(self) -> int:
        """Ranks, or model groups that train as one, of the strategy."""
        return self.ranks // self.model_ranks

    @cached_property
    def divisions(self) -> tuple[Division, ...]:
        """Parts of the layers of each rank of a model group; empty if layers are not split."""
        return () if self.mesh is None else self.mesh.divisions(self.layers, self.shape, self.ranks)

    @property
    def images(self) -> int:
        """Images of the batch of a copy of the network."""
        raise NotImplementedError

    @property
    def fewest_images(self) -> int:
        """Images of the smallest share of a batch."""
        return self.images

    @property
    def group_ranks(self) -> int:
        """Ranks that share a copy of the network: a pipeline or a model group; 1 if each has all layers."""
        return self.stages * self.model_ranks

    @property
    def copies(self) -> int:
        """Number of copies of the network that share a batch."""
        return len(self.strategy.workers(self.ranks // self.group_ranks, self.training.in_full))

    @property
    def trained_layers(self) -> Sequence[Layer]:
        """The layers as they are trained."""
        return self.layers

    @property
    def times_given(self) -> list[str]:
        """Keys that give the times of work: one of a case; also ``times`` for layers that state theirs."""
        given = [name for name in TIMES if getattr(self, name) is not None]
        return given or ["times"] * any(layer.forward_seconds is not None for layer in self.table)

    @cached_property
    def compute_times(self) -> ComputeTimes:
        """Times of the work of a rank that is not slowed and has all layers."""
        measured = shipped(self.device, str(self.model), self.shape, self.images) if self.device else None
        if measured is not None:
            return measured.of_network(self.layers, self.shape)
        if self.times is not None:
            return saved(self.times, str(self.model), self.layers, self.shape, self.images)
        rate = None if self.times_given == ["times"] else self.flops
        if self.device is not None:
            rate = DEVICES[self.device].rate(self.model.name, self.images)
        return at_rate(self.layers, self.shape, rate)

    @cached_property
    def stage_times(self) -> tuple[ComputeTimes, ...]:
        """:attr:`compute_times` of each rank of a pipeline or of a model group, by its place in it."""
        return self.times_of_ranks(self.compute_times, self.images)

    def times_of_ranks(self, times: ComputeTimes, images: int) -> tuple[ComputeTimes, ...]:
        """Return ``times`` of each rank that shares a copy of the network; ``images`` are those of the copy."""
        if self.mesh is not None and self.divisions:
            return times_of_ranks(times, self.layers, self.divisions, images, self.mesh.exchange)
        return times.of_stages(self.layers, self.parts)

    @property
    def cluster(self) -> Network:
        """The network of a simulated case, with its ranks on hosts."""
        return cluster(str(self.network), self.ranks_per_host, self.topology)

    @property
    def gradient_bytes(self) -> int:
        """Size of the vector that ranks exchange."""
        return volumes(self.layers, self.shape, 1).parameters * np.dtype(master(self.dtype)).itemsize

    def replica(
        self, kernels: Backend, place: Place | None = None, allocate: Callable[[int, str], Array] | None = None
    ) -> Replica:
        """Return a rank's layers, computed by ``kernels``; ``allocate`` makes the host's vectors.

        ``place``: the rank's place in a mesh that divides layers.
        """
        division = self.divisions[place.model.rank] if place is not None and self.divisions else None
        sized = kernels.sizes_only
        return Replica(
            self.layers if sized else self.trained_layers,
            self.shape,
            backend=kernels,
            dtype=master(self.dtype) if sized else self.dtype,
            seed=self.seed,
            allocate=allocate if kernels.on_host and not sized else None,
            division=division,
            part=self.parts[place.model.rank] if place is not None and self.stages > 1 else slice(None),
        )

    async def session(
        self,
        comm: Comm,
        journal: Journal,
        kernels: Backend,
        *,
        sized: SizedSteps | None = None,
        aggregate: Callable[[Comm, Array], Coroutine[Any, Any, None]] | None = None,
    ) -> Session:
        """Return a rank's side of the training, computed by ``kernels``. Every rank calls, before its programs.

        ``sized``: steps of a replica of sizes, without data and updates. Without it the case trains as its keys
        say. ``aggregate`` sums vectors, by default with the case's scheme.
        """
        place = await placed(comm, self.group_ranks) if self.group_ranks > 1 else None
        plan, group = self.plan, None
        make = partial(self.replica, kernels, place, comm.memory.allocate)
        replica = make() if sized is None or self.divisions else sized.replica(place, make)
        if place is not None and self.divisions and self.mesh is not None:
            group = ModelGroup(place, self.divisions[place.model.rank], replica, self.mesh.exchange)
        if sized is None:
            inputs = self.inputs(replica, group)
            update, rate = self.update_rule(replica), self.rate
        else:
            update, rate = NoUpdates(), lambda _step: 0.0
            inputs = SizedInputs(replica, sized.images, sized.images * self.copies, sized.steps, group)
            if plan is not None and sizes_only(replica.gradients):
                plan = of_sizes(plan)
        return Session(
            replica,
            update,
            aggregate or self.aggregation.bind(),
            inputs,
            self.evaluation(inputs, journal),
            rate,
            independent=self.independent,
            compression=plan,
            group=group,
            place=place,
        )

    def evaluation(self, inputs: Inputs, journal: Journal) -> Evaluation:
        """Return the evaluations of the training."""
        return Evaluation(inputs, journal)

    def words(self, choices: Sequence[Choice], length: str) -> list[str]:
        """Return the words of a case's name: its ``choices``, what divides them, ranks, batch and ``length``."""
        mesh = None if self.mesh is None else self.mesh.on(self.ranks)  # one that divides no layers has no name
        named = [*choices, *([self.compression] if self.plan else []), *([mesh] if mesh is not None else [])]
        batch = f"b{self.global_batch}" if self.batch_per_rank is None else f"b{self.batch_per_rank}each"
        return [*map(str, named), f"p{self.ranks}", batch, length]

    @property
    def common_fields(self) -> dict[str, Scalar]:
        """Fields of the record that are known before the run, of every training step."""
        return {
            **{name: str(getattr(self, name)) for name in ("model", "training", "compression")},
            "dataset": str(self.dataset) if self.dataset else shape_text(self.shape),
            "aggregation": str(self.aggregation) if self.strategy.aggregates else BY_STRATEGY,
            "dtype": self.dtype,
            "batch_per_rank": self.batch_per_rank,
            "scaling": "strong" if self.batch_per_rank is None else "weak",
            "threads_per_rank": self.threads,
            "parallelism": str(self.mesh) if self.group_ranks > 1 else None,
            "stages": self.stages if self.stages > 1 else None,
            "microbatches": self.microbatches if self.stages > 1 else None,
            "system": self.strategy.title(self.replicas, self.training.in_full),
            "lockstep": self.strategy.lockstep,
            "independent": self.independent,
        }
