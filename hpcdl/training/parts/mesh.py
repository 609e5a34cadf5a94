"""Mesh of ranks: data parallelism across model groups, model or pipeline parallelism within (Dryden et al. 2019).

The layers of one replica are divided among the ranks of a model group, which work on one batch together. Each rank
has only its parts of the layers; their gradients equal those of an undivided replica::

    mesh of 2 x 3 ranks      model group 0: ranks 0 1 2     one replica, three parts of each layer
                             model group 1: ranks 3 4 5     another
    data groups              {0, 3} {1, 4} {2, 5}           ranks with the same parts sum their gradients

Layers compute on the arrays that they are given; a :class:`~hpcdl.training.parts.sections.Flow` moves activations
between two layers, from one layout to another, and their gradients the opposite way. The one rule: nothing but the
flow and the neighbours of a section (``sections.py``) communicates within a group.

For other ranks a model group is one worker: a rank exchanges parameters and gradients only with its data group,
and the first rank of a group decides for the replica (DistBelief, sections 4 and 5.1).
"""

import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import accumulate, pairwise
from operator import itruediv
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpcdl.data.parts.dataset import Split
from hpcdl.data.parts.sharding import bounds
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import assign
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer
from hpcdl.nn.replica import Replica
from hpcdl.nn.split.division import LINEAR, SPLITS, Division, divide
from hpcdl.nn.split.part import Range, extents, intersection, within
from hpcdl.registry import nearest
from hpcdl.training.parts.bucketing import between, buckets
from hpcdl.training.parts.compressed import Compressed
from hpcdl.training.parts.sections import EXCHANGES, ModelParallel, Passes

MAX_LISTED: Final = 1024
"""Data groups, at most, of the meshes that a message lists."""


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Division of the ranks into ``data`` model groups of ``model`` ranks, and of the layers within a group.

    One of the two numbers may be left out: it follows from the ranks. With ``pipeline``, each of the groups is so
    many ranks that have consecutive layers, and the layers are whole.

    ``split``: ``model``: convolutions by filters, locally connected layers by rows, fully connected layers by
    features; ``space``: layers of images by rows, fully connected ones by features; ``hybrid``: layers of images
    data-parallel, fully connected ones by features (Krizhevsky 2014). Branches of layers are divided alone, and
    batch normalisation has the statistics of a group's whole batch; in a hybrid they are data-parallel.
    ``linear``: the features are ``outputs`` or ``inputs``. ``exchange``: in a hybrid, the fully connected layers
    get ``all`` images at once, those of one rank in ``turns``, or ``slices`` of all ranks' images
    (:mod:`hpcdl.training.parts.sections`).

    ValueError: a name that is none of these, a number below 1, or no number.
    """

    data: int | None = None
    model: int | None = None
    pipeline: int = 1
    split: str = "model"
    linear: str = "outputs"
    exchange: str = "all"

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in ("data", "model") if getattr(self, name) is not None}
        if not numbers and self.pipeline == 1:
            raise ValueError("give data, the number of groups, model, their ranks, or pipeline, their stages")
        for name, number in (*numbers.items(), ("pipeline", self.pipeline)):
            if number < 1:
                raise ValueError(f"{name}: must be at least 1, not {number}")
        for name, valid in (("split", SPLITS), ("linear", LINEAR), ("exchange", EXCHANGES)):
            if (given := getattr(self, name)) not in valid:
                raise ValueError(f"{name}: unknown {given!r}{nearest(given, valid)}")
        if self.exchange != "all" and self.split != "hybrid":
            raise ValueError(f"exchange: {self.exchange!r} is for split = 'hybrid'")
        for name in ("split", "linear", "exchange") if self.pipeline > 1 else ():
            if (given := getattr(self, name)) != getattr(Mesh, name):
                raise ValueError(f"{name}: {given!r} has no effect: layers of a pipeline are whole; leave it out")

    def __str__(self) -> str:
        given = [
            f"{key.name}={getattr(self, key.name)}"
            for key in fields(self)
            if key.name != "split" and getattr(self, key.name) != key.default
        ]
        return f"{'pipeline' if self.pipeline > 1 else self.split}({','.join(given)})"

    @property
    def _sizes(self) -> str:
        names = ("data", "model", "pipeline") if self.pipeline > 1 else ("data", "model")
        return " ".join(f"{name} {number}" for name in names if (number := getattr(self, name)) is not None)

    def groups(self, ranks: int) -> tuple[int, int]:
        """Return the number of model groups among ``ranks``, and their size.

        ValueError, with sizes that fit, if the ranks cannot be divided so.
        """
        if self.pipeline > 1:
            if self.model not in {None, 1}:
                raise ValueError(f"{self._sizes}: layers of a pipeline are not split; leave out model")
            data, rest = divmod(ranks, self.pipeline)
            if rest or self.data not in {None, data}:
                raise ValueError(f"{ranks} ranks do not fit {self._sizes}; data x pipeline must be {ranks}")
            return data, 1
        data = self.data or ranks // (self.model or 1)
        model = self.model or ranks // data if data else 0
        if data * model != ranks:
            fit = ", ".join(
                f"{number} x {ranks // number}"
                for number in range(1, min(ranks, MAX_LISTED) + 1)
                if ranks % number == 0
            )
            raise ValueError(f"{ranks} ranks do not fit {self._sizes}; data x model can be {fit}")
        return data, model

    def on(self, ranks: int) -> "Mesh | None":
        """Return the mesh with both sizes, equal for equal meshes; None if it divides no layers."""
        data, model = self.groups(ranks)
        if self.pipeline > 1:
            return replace(self, data=data, model=None)
        return replace(self, data=data, model=model) if model > 1 else None

    def divisions(self, layers: Sequence[Layer], shape: Shape, ranks: int) -> tuple[Division, ...]:
        """Return the divisions of ``layers`` of each rank of a model group, with ``ranks`` in all; empty if whole.

        ValueError, naming the layer, for one that cannot be split so.
        """
        _, model = self.groups(ranks)
        of = range(model) if model > 1 else ()
        return tuple(
            divide(layers, shape, split=self.split, linear=self.linear, rank=rank, ranks=model) for rank in of
        )

    def check_divisions(self, layers: Sequence[Layer], shape: Shape, ranks: int) -> None:
        """Raise ValueError for layers that cannot be split so, and for keys without effect on them.

        An exchange in passes needs data-parallel layers before split ones.
        """
        divisions = self.divisions(layers, shape, ranks)
        for name in ("split", "linear") if divisions else ():
            default = getattr(Mesh, name)
            if (given := getattr(self, name)) == default or (name == "split" and self.exchange != "all"):
                continue
            try:
                usual = replace(self, **{name: default}).divisions(layers, shape, ranks)
            except ValueError:
                continue
            if all(a.boundaries == b.boundaries for a, b in zip(divisions, usual, strict=True)):
                raise ValueError(f"{name}: {given!r} splits this network as {default!r} does; leave it out")
        for division in divisions:
            if self.exchange != "all" and not 0 < division.first_split < len(division.parts):
                raise ValueError(
                    f"exchange: {self.exchange!r} needs data-parallel layers before fully connected ones"
                )


@dataclass(frozen=True)
class Place:
    """A rank's place in a mesh, and its two groups."""

    group: int
    """Number of the model group: the position in the data group."""
    data: Comm
    """Ranks with the same parts of the layers, one of each model group."""
    model: Comm
    ranks: tuple[tuple[int, ...], ...]
    """Ranks of each model group, in the order of their parts."""


async def placed(comm: Comm, ranks: int) -> Place:
    """Return this rank's place among model groups of ``ranks`` ranks. Every rank calls, before other programs run.

    Ranks are ordered by host, so that a model group, which exchanges most, lies within a host where possible.
    """
    hosts = (await comm.allgather_words(comm.memory.place(np.empty(0))))[:, 0]
    first = {int(host): rank for rank, host in reversed([*enumerate(hosts)])}
    order = sorted(range(comm.size), key=lambda rank: (first[int(hosts[rank])], rank))
    groups = tuple(tuple(order[begin : begin + ranks]) for begin in range(0, comm.size, ranks))
    group, position = divmod(order.index(comm.rank), ranks)
    model = await comm.split(group, order.index(comm.rank))
    data = await comm.split(position, group)
    return Place(group, data, model, groups)


def segments(parts: Iterable[tuple[slice, bool]], span: slice) -> list[tuple[slice, bool]]:
    """Return the runs of ``span`` that are divided, and those that are not, in order.

    ``parts`` are adjacent slices of the vector; True marks a divided one.
    """
    runs: list[tuple[slice, bool]] = []
    for part, divided in parts:
        low, high = max(part.start, span.start), min(part.stop, span.stop)
        if low >= high:
            continue
        if runs and runs[-1][1] == divided:
            low = runs.pop()[0].start
        runs.append((slice(low, high), divided))
    return runs


class ModelGroup:
    """One rank of a model group: its parts of the layers, its share of the group's batch, and its sums."""

    def __init__(self, place: Place, division: Division, replica: Replica, exchange: str = "all") -> None:
        self.place = place
        self.flow = ModelParallel(place.model, division, replica.stages)
        self.passes: Passes | None = None
        """Split layers that work in passes; None: all work on the whole batch at once."""
        if EXCHANGES[exchange] is not None:
            self.passes = Passes(exchange, division, replica, place.model)
        self._parts = division.parts
        self.takes = division.parts[0].takes
        """Layout of the images that the first layer's part takes."""
        self._replica = replica

    def shares(self, images: int) -> tuple[Range, ...]:
        """Return the ranks' shares of a batch of the group; sizes differ by at most one image."""
        return tuple(pairwise(bounds(images, self.place.model.size)))

    def read(
        self, split: Split, indices: NDArray[np.int64], key: tuple[int, ...] | None = None
    ) -> tuple[Array, NDArray[np.int64]]:
        """Return what the first layer takes of the group's images ``indices``, and labels of this rank's share."""
        takes, rank, dtype = self.takes, self.place.model.rank, self._replica.dtype
        own = slice(*self.shares(len(indices))[rank])
        if takes.by_images:
            return split.batch(indices[own], dtype, key)
        images, labels = split.batch(indices, dtype, key)
        if takes.replicated:
            return images, labels[own]
        box = takes.boxes(((0, len(images)),))[rank]
        origin = tuple((0, extent) for extent in images.shape)
        inside = intersection(box, origin)
        part = np.full(extents(box), takes.fill, images.dtype)
        part[within(inside, box)] = images[within(inside, origin)]
        return part, labels[own]

    def buckets(self, spans: Sequence[slice], smallest: int, *, whole_tensors: bool = False) -> list[slice]:
        """Return :func:`hpcdl.training.parts.bucketing.buckets` of the layers at ``spans``, on all ranks as many.

        They are cut in a vector in which a divided layer has the mean size of its parts. So parts of unequal sizes
        move no cut of a layer that is whole on every rank. With ``whole_tensors`` cuts are between layers.
        """
        ranks = self.place.model.size
        layers = [
            (part, stage)
            for part, stage in zip(self._parts, self._replica.stages, strict=True)
            if stage.span in spans and stage.span.stop > stage.span.start
        ]
        stages = [stage for _, stage in layers]
        whole = [
            sum(math.prod(cut.whole.shape) for cut in part.cuts.values() if cut.whole.trained)
            for part, _ in layers
        ]
        sizes = [
            -(-size // ranks) if size else stage.span.stop - stage.span.start
            for size, stage in zip(whole, stages, strict=True)
        ]
        means = [slice(low, high) for low, high in pairwise(accumulate(sizes, initial=0))]

        def own(cut: int) -> int:
            for mean, stage in zip(means, stages, strict=True):
                if cut < mean.stop:
                    length = stage.span.stop - stage.span.start
                    return int(stage.span.start + (cut - mean.start) * length // (mean.stop - mean.start))
            return int(stages[-1].span.stop)

        slices = buckets(means, smallest)
        if whole_tensors:
            slices = between(slices, means)
        return [slice(own(piece.start), own(piece.stop)) for piece in slices]

    async def reduce(
        self,
        comm: Comm,
        span: slice,
        aggregate: Callable[[Comm, Array], Coroutine[Any, Any, None]],
        compressed: Compressed | None = None,
    ) -> None:
        """Sum ``span`` of the gradients over the ranks of ``comm`` that have the same parameters.

        For a divided layer these are a data group (segmented allreduce; Dryden et al. 2019). With ``compressed``
        the ranks of a model group first sum the gradient of a whole layer; the data group of the first ranks then
        sums it compressed, because compressors draw by positions in a rank's own vector.
        """
        stages, gradients, place = self._replica.stages, self._replica.gradients, self.place
        for piece, divided in segments([(stage.span, stage.divided) for stage in stages], span):
            part = gradients[piece]
            if compressed is None:
                ranks = place.data if divided else comm
                if ranks.size > 1:
                    await aggregate(ranks, part)
            elif divided:
                await compressed.reduce(place.data, piece, part, aggregate)
            else:
                dense = compressed.dense(aggregate)
                await dense(place.model, part)
                if place.model.rank == 0:
                    await compressed.reduce(place.data, piece, part, aggregate)
                else:
                    await comm.apply("reset", partial(assign, part, 0), part.nbytes)
                await dense(place.model, part)  # a broadcast: the other summands are zeros

    async def complete(self, aggregate: Callable[[Comm, Array], Coroutine[Any, Any, None]]) -> None:
        """Sum the gradients of layers that are whole on all ranks of the group, so that they are the replica's."""
        gradients = self._replica.gradients
        spans = [(stage.span, stage.divided) for stage in self._replica.stages]
        for piece, divided in segments(spans, slice(0, gradients.size)):
            if not divided:
                await aggregate(self.place.model, gradients[piece])

    def square_distance(self, parameters: Array, average: Array) -> float:
        """Return this rank's summand of the squared distance of two replicas' parameters."""
        distance = 0.0
        for stage in self._replica.stages:
            square = float(((parameters[stage.span] - average[stage.span]) ** 2).sum())
            distance += square if stage.divided else square / self.place.model.size
        return distance

    async def average_statistics(self, comm: Comm) -> None:
        """Average the running statistics over the ranks of ``comm`` that have the same ones."""
        stages, state = self._replica.stages, self._replica.state
        for piece, divided in segments([(stage.state, stage.divided) for stage in stages], slice(0, state.size)):
            ranks = self.place.data if divided else comm
            await ranks.native("allreduce", state[piece])
            await comm.compute("evaluation", partial(itruediv, state[piece], ranks.size))

    async def test(
        self, comm: Comm, split: Split, global_batch: int, parameters: Array | None = None
    ) -> NDArray[np.float64]:
        """Return the summed loss and correct answers of this rank's share of a split, (2,)."""
        replica, place, groups = self._replica, self.place, self.place.data.size
        first, end = (number * len(split) // groups for number in (place.group, place.group + 1))
        length = math.ceil(global_batch / groups)
        sums = np.zeros(2)
        with using(replica, parameters):
            for begin in range(first, end, length):
                indices = np.arange(begin, min(begin + length, end))
                images = self.shares(len(indices))
                read, labels = await comm.compute("evaluation", partial(self.read, split, indices))
                x, labels = replica.backend.asarray(read), replica.backend.asarray(labels)
                for boundary, stage in enumerate(replica.stages):
                    x = await self.flow.forward(boundary, x, images)
                    x = await comm.compute("evaluation", partial(stage.forward, x, train=False))
                x = await self.flow.forward(len(replica.stages), x, images)
                work = partial(replica.loss, x, labels, 1.0)
                loss, correct, _ = await comm.compute("evaluation", work)
                sums += (loss, correct)
        replica.release_predictions()
        return sums


@contextmanager
def using(replica: Replica, parameters: Array | None) -> Iterator[None]:
    """Use ``parameters`` in place of the replica's own, which return afterwards; None: its own."""
    own = None if parameters is None else replica.parameters.copy()
    if parameters is not None:
        replica.parameters[:] = parameters
    yield
    if own is not None:
        replica.parameters[:] = own


_DECISION: Final = 200
"""Tag of the numbers that the first rank of a model group sends."""
_CONTRIBUTION: Final = 201
"""Tag of the numbers that it receives."""


def holders(comm: Comm, group: ModelGroup | None) -> Comm:
    """Return the ranks that hold this rank's parameters, one of each replica: its data group, or all ranks."""
    return comm if group is None else group.place.data


def place_among(comm: Comm, group: ModelGroup | None) -> tuple[int, int]:
    """Return the number of this rank's replica, and the number of replicas."""
    among = holders(comm, group)
    return among.rank, among.size


def members(comm: Comm, group: ModelGroup | None) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each replica, in the order of their parts of the layers."""
    return tuple((rank,) for rank in range(comm.size)) if group is None else group.place.ranks


def leads(group: ModelGroup | None) -> bool:
    """Return whether this rank decides for its replica."""
    return group is None or group.place.model.rank == 0


async def follow(group: ModelGroup | None, numbers: NDArray[np.int64] | NDArray[np.float64]) -> None:
    """Replace ``numbers`` by those of the rank that decides for the replica."""
    if group is None:
        return
    ranks = group.place.model
    if ranks.rank:
        await ranks.recv(numbers, 0, _DECISION)
    else:
        for rank in range(1, ranks.size):
            await ranks.send(numbers, rank, _DECISION)


async def contribute(group: ModelGroup | None, numbers: NDArray[np.float64]) -> None:
    """Add the ``numbers`` of the replica's ranks on the rank that decides, in the order of ranks."""
    if group is None:
        return
    ranks = group.place.model
    if ranks.rank:
        await ranks.send(numbers, 0, _CONTRIBUTION)
    else:
        others = numbers.copy()
        for rank in range(1, ranks.size):
            await ranks.recv(others, rank, _CONTRIBUTION)
            numbers += others
