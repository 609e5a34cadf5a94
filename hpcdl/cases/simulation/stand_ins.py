"""A training of which only the messages are real: stand-ins for replica, session and optimizer.

Stages have the names and the gradients of a network's and do no arithmetic; how long each takes is for the
communicator to say (:mod:`hpcdl.fabric.modelled_compute`). Gradients are zeros except whole numbers, a rank's
own in each step, at the ends of every stage and here and there between, so that sums that are wrong or mixed up
show. Gradients that are compressed are normally distributed.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdl.cases.simulation.stand_in_stages import Divided, Marks, Microbatched, Outline, Stage, Valued
from hpcdl.data.parts.sharding import EQUAL, Shares
from hpcdl.fabric.vectors import Phantom, phantom
from hpcdl.nn.volumes import volumes
from hpcdl.training.parts.bucketing import between, buckets
from hpcdl.training.parts.flow import WHOLE, Flow

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer
    from hpcdl.nn.split.layout import Range
    from hpcdl.training.parts.compressed.compressed import Compressed
    from hpcdl.training.parts.journal import Journal
    from hpcdl.training.parts.mesh import Place
    from hpcdl.training.parts.model_group import ModelGroup


@dataclass
class Replica:
    """Stages that share a vector of gradients; parameters are there where they are exchanged."""

    stages: Sequence[Stage | Valued | Outline | Divided]
    gradients: Array
    held: Held
    parameters: Array = field(default_factory=lambda: np.empty(0, np.float32))

    def __post_init__(self) -> None:
        """Set the attributes that a program of a strategy reads."""
        self.is_first, self.is_last = self.held.is_first, self.held.is_last
        self.shape, self.output = self.held.shape, self.held.output

    def buffers(self, images: int, count: int, *, inputs: bool) -> list[Array]:
        """Return vectors for the ``inputs`` of ``images`` images each, or for their outputs."""
        shape = self.shape if inputs else self.output
        return [self._vector(images * math.prod(shape)) for _ in range(count)]

    def bindings(self, count: int, part: slice = slice(None)) -> list[Sequence[Microbatched | Divided]]:
        """Return the layers of ``part`` ``count`` times, for as many microbatches in flight."""
        return [self._binding(part) for _ in range(count)]

    def loss(self, x: Array, _labels: Array, _scale: float) -> tuple[float, int, Array]:
        """Return no loss, no right answer, and a gradient for the stages to hand on."""
        return float("nan"), 0, x

    def _binding(self, part: slice) -> Sequence[Microbatched | Divided]:
        split = [stage for stage in self.stages[part] if isinstance(stage, Divided)]
        if split:
            return [*map(copy, split)]
        stages = [Microbatched(stage) for stage in self.stages if not isinstance(stage, Divided)]
        if not self.is_last:
            stages[-1].sent = partial(self._images, self.output)
        if not self.is_first:
            stages[0].returned = partial(self._images, self.shape)
        return stages

    def _images(self, shape: Shape, images: int) -> Array:
        return self._vector(images * math.prod(shape)).reshape(images, *shape)

    def _vector(self, size: int) -> Array:
        if type(self.gradients) is Phantom:
            return phantom(size, self.gradients.dtype)
        return np.zeros(size, self.gradients.dtype)


def replica(
    layers: Sequence[Layer], shape: Shape, rank: int, ranks: int, *, summed: bool, part: slice = slice(None)
) -> tuple[Replica, Marks]:
    """Make a stand-in for ``part`` of the network of ``layers`` on images of ``shape``.

    ``ranks`` ranks have this part; the stand-in is number ``rank`` of them. ValueError: shapes that do not fit.
    """
    held = held_layers(layers, shape, part)
    marks = Marks(np.zeros(held.spans[-1].stop, np.float32), rank, ranks, summed)
    stages = [Stage(name, span, marks) for name, span in zip(held.names, held.spans, strict=True)]
    return Replica(stages, marks.gradients, held), marks


def valued_replica(layers: Sequence[Layer], shape: Shape, rank: int) -> Replica:
    """Make a stand-in whose gradients are normally distributed, others on each ``rank``, equal in all steps."""
    held = held_layers(layers, shape, slice(None))
    values = np.random.default_rng(rank).standard_normal(held.spans[-1].stop, np.float32)
    gradients = np.zeros_like(values)
    stages = [Valued(name, span, gradients, values) for name, span in zip(held.names, held.spans, strict=True)]
    return Replica(stages, gradients, held)


def outline(held: Held, dtype: str) -> Replica:
    """Make one of sizes only, for as many simulated ranks as there may be: its vectors take no memory."""
    stages = [Outline(name, span) for name, span in zip(held.names, held.spans, strict=True)]
    vector = phantom(held.spans[-1].stop, dtype)
    return Replica(stages, vector, held, vector)


@dataclass(frozen=True)
class Held:
    """Layers that a rank has, and the shapes of an input and of an output."""

    names: tuple[str, ...]
    spans: tuple[slice, ...]
    """Place of each layer's parameters in the vector of all."""
    is_first: bool
    is_last: bool
    shape: Shape
    output: Shape


def held_layers(layers: Sequence[Layer], shape: Shape, part: slice) -> Held:
    """Return the layers of a rank that has ``part`` of a network. ValueError: shapes that do not fit."""
    begin, end, _ = part.indices(len(layers))
    for layer in layers[:begin]:
        shape = layer.output(shape)
    given, ends = shape, [0]
    for layer in layers[begin:end]:
        ends.append(ends[-1] + volumes([layer], shape, 1).parameters)
        shape = layer.output(shape)
    names = tuple(layer.name for layer in layers[begin:end])
    spans = tuple(slice(first, last) for first, last in pairwise(ends))
    return Held(names, spans, begin == 0, end == len(layers), given, shape)


class Updates:
    """An optimizer that changes nothing."""

    def update(self, parameters: Array, gradients: Array, rate: float) -> None:
        """Do nothing."""


@dataclass
class Session:
    """One rank's side of a replayed case; see :class:`hpcdl.training.parts.session.Session`."""

    replica: Replica
    aggregate: Callable[[Comm, Array], Coroutine[Any, Any, None]]
    journal: Journal
    batch_per_rank: int
    """Images of a rank with all layers, or of a group of ranks that share them."""
    global_batch: int
    steps: int
    bucket_bytes: int | None = None
    independent: bool = False
    """True if replicas are never combined."""
    optimizer: Updates = field(default_factory=Updates)
    compressed: Compressed | None = None
    """Exchange of compressed gradients; None: they are dense."""
    shares: Shares = EQUAL
    place: Place | None = None
    """Place of the rank among pipelines."""
    images: int = 0
    """Images of the work under way."""
    group: ModelGroup | None = None
    """This rank of a model group; None: every rank has all layers of its stage."""

    @property
    def flow(self) -> Flow:
        """Movement of activations between the layers."""
        return WHOLE if self.group is None else self.group.flow

    @property
    def group_shares(self) -> tuple[Range, ...]:
        """Return the shares of the model group's ranks in its batch; the images of the rank alone without one."""
        return ((0, self.images),) if self.group is None else self.group.shares(self.batch_per_rank)

    def optimizer_of(self, _span: slice) -> Updates:
        """Return an optimizer that changes nothing."""
        return self.optimizer

    def buckets(self, smallest: int | None, spans: Sequence[slice] | None = None) -> list[slice]:
        """See :class:`hpcdl.training.parts.session.Session`."""
        replica = self.replica
        whole = slice(0, replica.gradients.size) if spans is None else slice(spans[0].start, spans[-1].stop)
        if not smallest or whole.start == whole.stop:
            return [whole] if whole.start < whole.stop else []
        spans = [stage.span for stage in replica.stages] if spans is None else spans
        elements = max(1, smallest // self.replica.gradients.itemsize)
        if self.group is not None:
            return self.group.buckets(spans, elements)
        found = buckets(spans, elements)
        if self.compressed is not None and self.compressed.plan.traits.whole_tensors:
            return between(found, [one.span for one in self.compressed.tensors])
        return found

    async def reduce(self, comm: Comm, span: slice) -> None:
        """See :class:`hpcdl.training.parts.session.Session`."""
        if self.group is not None:
            await self.group.reduce(comm, span, self.aggregate)
        elif self.compressed is not None:
            await self.compressed.reduce(comm, span, self.replica.gradients[span], self.aggregate)
        else:
            await self.aggregate(comm, self.replica.gradients[span])

    def learning_rate(self, _step: int) -> float:
        """Return 0: nothing is learned."""
        return 0.0

    def epoch(self, _step: int) -> int:
        """Return 0: there is no data to pass through."""
        return 0

    def input(self, _step: int, _rank: int, _ranks: int) -> tuple[Array, Array]:
        """Return a batch of images without pixels: those of the first layer, and the own labels."""
        self.images = taken = self.batch_per_rank
        if self.group is not None:
            low, high = self.group.shares(taken)[self.group.place.model.rank]
            self.images, taken = high - low, taken if self.group.takes_all else high - low
        return np.empty((taken, 0), np.float32), np.empty(self.images, np.int64)

    def images_of(self, _rank: int, _ranks: int) -> int:
        """Return the images of a share of a batch."""
        return self.batch_per_rank

    def labels(self, _step: int, _rank: int, _ranks: int) -> Array:
        """Return the labels of a batch."""
        self.images = 0
        return np.empty(self.batch_per_rank, np.int64)

    def evaluation_due(self, step: int) -> bool:
        """At the end, when the last sums are there."""
        return step == self.steps

    async def evaluate(self, _comm: Comm, _step: int, **_through: object) -> bool:
        """Look at the last sums."""
        for stage in self.replica.stages:
            stage.look()
        return False
