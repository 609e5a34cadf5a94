"""Sections of consecutive layers: flow of activations, microbatches, schedules, both ends of a section, passes.

A section works on microbatches in the order of a schedule. A replica on one rank is one section with one
microbatch. A stage of a pipeline is a section whose neighbours are other ranks. The split layers of a hybrid are a
section whose microbatches are passes (Krizhevsky 2014, section 4): convolutions are data-parallel, so that each of
K ranks has the activations of its own images; fully connected layers are split and need those of all. Scheme (a),
``all``, gathers all images at once. In K passes the activations of the next part move while the fully connected
layers work on the present one. Scheme (b), ``turns``: each rank sends its images in turn. Scheme (c), ``slices``:
in each pass every rank sends 1/K of its images. All three send the same bytes and give the same gradient.

Batch normalisation needs the statistics of all images. So the passes end before the first one among these layers:
the layers from there on work on the whole batch, after the forwards of all passes and before their backwards.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from hpcdl.aggregation import direct
from hpcdl.data.parts.sharding import bounds
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import Task, join
from hpcdl.fabric.vectors import Parts, assign, empty
from hpcdl.nn.replica import Replica, Stage
from hpcdl.nn.split.division import Division
from hpcdl.nn.split.part import Box, Layout, Range, extents, intersection, volume, within
from hpcdl.training.parts.journal import Outcome


async def redistribute(
    comm: Comm, x: Array, source: Layout, target: Layout, images: Sequence[Range], empty: Callable[[int], Array]
) -> Array:
    """Return the activations in the layout ``target``, with all axes of its box, from ``x`` in ``source``.

    Positions that several ranks have in ``source`` are summands; positions that several ranks have in ``target``
    are copies. Therefore the gradient goes the opposite way by the same function. ``images`` are the ranks' shares
    of the group's batch, ``empty(size)`` returns an uninitialised vector.

    Copies of the whole are gathered, summands of the whole are reduce-scattered (:mod:`hpcdl.aggregation.direct`).
    Otherwise each rank sends each other rank the positions that the two share. With n elements of a whole batch,
    all p ranks, the gathering and the scattering each send (p - 1)*n.
    """
    have, want = source.boxes(images), target.boxes(images)
    x = x.reshape(extents(have[comm.rank]))
    if source.replicated:
        return await _reduce_scatter(comm, x, want, empty)
    if target.replicated:
        return await _gather(comm, x, have, want[comm.rank], empty)
    inside = ((0, images[-1][1]), *((0, extent) for extent in target.shape))
    return await _exchange(comm, x, have, want, target.fill, inside, empty)


async def _gather(comm: Comm, x: Array, have: Sequence[Box], want: Box, empty: Callable[[int], Array]) -> Array:
    whole = empty(volume(want)).reshape(extents(want))
    # cut by images, the parts are consecutive
    in_place = all(math.prod(extents(box)[1:]) == math.prod(extents(want)[1:]) for box in have)
    with comm.scratch(0 if in_place else whole.size, whole) as inbox:
        chunks = _chunks(whole.reshape(-1) if in_place else inbox, have)
        await comm.apply("copy", partial(assign, chunks[comm.rank], x.reshape(-1)), x.nbytes)
        await direct.allgather(comm, chunks)

        def unpack() -> None:
            for box, chunk in zip(have, chunks, strict=True):
                whole[within(box, want)] = chunk.reshape(extents(box))

        if not in_place:
            await comm.apply("unpack", unpack, whole.nbytes)
    return whole


async def _reduce_scatter(comm: Comm, x: Array, want: Sequence[Box], empty: Callable[[int], Array]) -> Array:
    with comm.scratch(x.size, x) as summands:
        chunks = _chunks(summands, want)
        origin = tuple((0, extent) for extent in x.shape)

        def pack() -> None:
            for box, chunk in zip(want, chunks, strict=True):
                chunk.reshape(extents(box))[...] = x[within(box, origin)]

        await comm.apply("pack", pack, x.nbytes)
        await direct.reduce_scatter(comm, chunks)
        moved = empty(chunks[comm.rank].size)
        await comm.apply("copy", partial(assign, moved, chunks[comm.rank]), moved.nbytes)
    return moved.reshape(extents(want[comm.rank]))


async def _exchange(
    comm: Comm,
    x: Array,
    have: Sequence[Box],
    want: Sequence[Box],
    fill: float,
    inside: Box,
    empty: Callable[[int], Array],
) -> Array:
    rank, peers = comm.rank, [*range(comm.rank + 1, comm.size), *range(comm.rank)]
    own, origin = want[rank], have[rank]
    moved = empty(volume(own)).reshape(extents(own))
    leaving = [intersection(origin, want[peer]) for peer in peers]
    arriving = [intersection(have[peer], own) for peer in peers]
    copied = sum(map(volume, leaving))
    with comm.scratch(copied, x) as outbox, comm.scratch(sum(map(volume, arriving)), x) as inbox:
        sent, received = _chunks(outbox, leaving), _chunks(inbox, arriving)

        def pack() -> None:
            for box, chunk in zip(leaving, sent, strict=True):
                chunk.reshape(extents(box))[...] = x[within(box, origin)]

        await comm.apply("pack", pack, outbox.nbytes)
        under_way = [
            comm.start(program, shared_tags=True)
            for peer, out, into in zip(peers, sent, received, strict=True)
            for program in (
                *([comm.recv(into, peer)] if into.size else []),
                *([comm.send(out, peer)] if out.size else []),
            )
        ]

        def take_own() -> None:
            both = intersection(origin, own)
            moved[...] = fill
            moved[within(intersection(own, inside), own)] = 0
            moved[within(both, own)] = x[within(both, origin)]

        def take_others() -> None:
            for box, chunk in zip(arriving, received, strict=True):
                moved[within(box, own)] += chunk.reshape(extents(box))

        await comm.apply("copy", take_own, moved.nbytes)
        await join(under_way)
        await comm.apply("add", take_others, inbox.nbytes)
    return moved


def _chunks(vector: Array, boxes: Sequence[Box]) -> Parts:
    """Return consecutive parts of a vector, each of the size of its box."""
    bounds = [*accumulate(map(volume, boxes), initial=0)]
    return Parts(vector, [vector[low:high] for low, high in pairwise(bounds)])


class Flow:
    """Moves activations forward over the boundaries of stages, and their gradients backward; here nothing moves.

    Boundary i is before stage i; the last one is before the loss. ``images``: shares of the group's ranks in its
    batch.
    """

    async def forward(self, boundary: int, x: Array, images: Sequence[Range]) -> Array:  # noqa: ARG002
        """Return the outputs of the stage before the boundary as the stage after it takes them."""
        return x

    async def backward(self, boundary: int, dx: Array, images: Sequence[Range]) -> Array:  # noqa: ARG002
        """Return the gradient of the outputs before the boundary from that of the inputs after it."""
        return dx


WHOLE: Final = Flow()
"""Flow of a replica that has all stages whole."""


class ModelParallel(Flow):
    """Flow among the ranks of ``group``, each of which has its part of every stage."""

    def __init__(self, group: Comm, division: Division, stages: Sequence[Stage]) -> None:
        self._group = group
        self._boundaries = division.boundaries
        self._given = [stages[0].shape, *(stage.output for stage in stages)]
        self._taken = [*(stage.shape for stage in stages), division.output]
        self._buffers: dict[tuple[int, int], Array] = {}

    async def forward(self, boundary: int, x: Array, images: Sequence[Range]) -> Array:
        given, taken = self._boundaries[boundary]
        return await self._move(boundary, x, given, taken, images, self._taken[boundary])

    async def backward(self, boundary: int, dx: Array, images: Sequence[Range]) -> Array:
        given, taken = self._boundaries[boundary]
        return await self._move(-1 - boundary, dx, taken, given, images, self._given[boundary])

    async def _move(
        self, key: int, x: Array, source: Layout, target: Layout, images: Sequence[Range], shape: Sequence[int]
    ) -> Array:
        """Return ``x`` in the layout ``target``, in memory that is valid until the next call with ``key``."""
        if source == target:
            return x

        def buffer(size: int) -> Array:
            if (key, size) not in self._buffers:
                self._buffers[key, size] = empty(size, x)
            return self._buffers[key, size]

        moved = await redistribute(self._group, x, source, target, images, buffer)
        return moved.reshape(len(moved), *shape)


class Pass(NamedTuple):
    """Forward or backward pass of one microbatch."""

    forward: bool
    microbatch: int


def gpipe(_stage: int, _stages: int, microbatches: int) -> list[Pass]:
    """Return GPipe's order (Huang et al. 2019, figure 2c): all forwards, then all backwards in reverse.

    All microbatches are in flight.
    """
    return [Pass(True, m) for m in range(microbatches)] + [Pass(False, m) for m in reversed(range(microbatches))]


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[Pass]:
    """Return 1F1B's order with a flush per step (PipeDream-Flush; Narayanan et al. 2021, section 2.2).

    After a warm-up, each forward is followed by a backward. At most ``stages - stage`` microbatches are in flight.
    """
    ahead = min(stages - stage, microbatches)
    order = [Pass(True, m) for m in range(ahead)]
    for m in range(microbatches):
        order.append(Pass(False, m))
        if m + ahead < microbatches:
            order.append(Pass(True, m + ahead))
    return order


SCHEDULES: Final[Mapping[str, Callable[[int, int, int], list[Pass]]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
}
"""Functions of stage, stages and microbatches, by name."""


def in_flight(order: Sequence[Pass]) -> int:
    """Return the most microbatches that are between their forward and their backward."""
    most = now = 0
    for step in order:
        now += 1 if step.forward else -1
        most = max(most, now)
    return most


def bubble_share(stages: int, microbatches: int, balance: float = 1.0) -> float:
    """Return the idle share of a step without messages, mean over stages: GPipe's, and at most that of 1F1B.

    ``balance``: mean time of the stages by that of the slowest, b. The slowest stage works on M microbatches, and
    each other stage delays the first of them: a step takes M - 1 + S b of its times, of which a stage works M b.
    Equal stages, b = 1, with either schedule: (S - 1) / (M + S - 1) (Huang et al. 2019, section 2.3).
    """
    return 1 - microbatches * balance / (microbatches - 1 + stages * balance)


class Microbatch(NamedTuple):
    """Images that pass through the layers together."""

    labels: Array
    shares: Sequence[Range]
    """Shares of the model group's ranks in the images."""


class Section(NamedTuple):
    """Consecutive layers that work on the same microbatches, in the order of a schedule."""

    begin: int
    """Number of the first layer among those of the replica."""
    bindings: Sequence[Sequence[Stage]]
    """The layers, bound once for each microbatch in flight; microbatches take them in turn."""
    flows: Sequence[Flow]
    """Flows of activations, which microbatches take in turn."""
    order: Sequence[Pass]
    microbatches: Sequence[Microbatch] = ()


NUMBERS: Final = 127
"""Tags of each direction; microbatches take them in turn."""
FORWARD, BACKWARD, LOSS = 0, NUMBERS, 2 * NUMBERS
"""First tags of activations and of their gradients; tag of losses of auxiliary classifiers."""


class Neighbour:
    """End of a section of layers, as the section sees it; its sends are under way until they are waited for."""

    def __init__(self) -> None:
        self._sends: dict[int, Task[None]] = {}

    def expect(self, microbatch: int, images: int) -> None:
        """Begin to receive the array of a microbatch."""

    async def received(self, microbatch: int) -> Array:
        """Return the expected array of a microbatch, valid for as many microbatches as there are buffers."""
        raise NotImplementedError

    async def send(self, microbatch: int, array: Any) -> None:
        """Begin to send an array, which must not change until it is :meth:`sent`."""
        raise NotImplementedError

    async def sent(self, microbatch: int) -> None:
        """Wait until the array of a microbatch, if there is one, is sent."""
        if (earlier := self._sends.pop(microbatch, None)) is not None:
            await earlier

    async def finish(self) -> None:
        """Wait until all sends are complete."""
        for microbatch in [*self._sends]:
            await self.sent(microbatch)


class AdjacentStage(Neighbour):
    """The rank with the stage ``before`` or after, for microbatches of at most ``images``.

    Transfers overlap with computing. Activations are kept until the backward of their microbatch, and gradients
    until it is complete on the stage before too: a layer may return a view of what it was given. One more buffer
    than microbatches ``in_flight`` receives the next ones.
    """

    def __init__(self, pipe: Comm, replica: Replica, images: int, in_flight: int, *, before: bool) -> None:
        super().__init__()
        self._pipe = pipe
        self._peer = pipe.rank - 1 if before else pipe.rank + 1
        self._outgoing, self._incoming = (BACKWARD, FORWARD) if before else (FORWARD, BACKWARD)
        first, last = replica.stages[0], replica.stages[-1]
        self._shape, dtype = (first.shape, first.input_dtype) if before else (last.output, last.output_dtype)
        size = images * math.prod(self._shape)
        self._buffers = [replica.backend.zeros(size, dtype) for _ in range(in_flight + 1)]
        self._expected: dict[int, tuple[Task[Any], Array]] = {}
        self._turn = 0

    def expect(self, microbatch: int, images: int) -> None:
        buffer = self._buffers[self._turn % len(self._buffers)]
        self._turn += 1
        vector = buffer[: images * math.prod(self._shape)]
        work = self._pipe.recv(vector, self._peer, self._incoming + microbatch % NUMBERS)
        task = self._pipe.start(work, shared_tags=True)
        self._expected[microbatch] = task, vector.reshape(images, *self._shape)

    async def received(self, microbatch: int) -> Array:
        task, array = self._expected.pop(microbatch)
        await task
        return array

    async def send(self, microbatch: int, array: Array) -> None:
        work = self._pipe.send(array.reshape(-1), self._peer, self._outgoing + microbatch % NUMBERS)
        self._sends[microbatch] = self._pipe.start(work, shared_tags=True)


class Images(Neighbour):
    """The images of a batch, or other inputs of a section; ``gradient`` is that of the last microbatch."""

    def __init__(self, microbatches: Sequence[Array]) -> None:
        super().__init__()
        self.gradient: Any = None
        self._microbatches = microbatches

    async def received(self, microbatch: int) -> Array:
        return self._microbatches[microbatch]

    async def send(self, microbatch: int, array: Any) -> None:  # noqa: ARG002
        self.gradient = array


@dataclass(eq=False)
class Loss(Neighbour):
    """The loss, after the last layer; results are added to ``outcome``, the losses as a sum over images.

    Layers before it may be divided: logits and their gradients move by the section's ``flows``.
    """

    comm: Comm
    replica: Replica
    microbatches: Sequence[Microbatch]
    flows: Sequence[Flow]
    scale: float
    outcome: Outcome

    def __post_init__(self) -> None:
        super().__init__()
        self.outcome.loss = 0.0
        self._outputs: dict[int, Array] = {}

    async def received(self, microbatch: int) -> Array:
        labels, shares = self.microbatches[microbatch]
        flow, boundary = self.flows[microbatch % len(self.flows)], len(self.replica.stages)
        logits = await flow.forward(boundary, self._outputs.pop(microbatch), shares)
        work = partial(self.replica.loss, logits, labels, self.scale)
        loss, correct, gradient = await self.comm.compute("loss", work)
        self.outcome.loss += loss
        self.outcome.correct += correct
        self.outcome.images += len(labels)
        return await flow.backward(boundary, gradient, shares)

    async def send(self, microbatch: int, array: Any) -> None:
        self._outputs[microbatch] = array


def _in_turns(shares: Sequence[Range], rank: int, step: int) -> Range:
    length = shares[rank][1] - shares[rank][0]
    return (0, length) if rank == step else (0, 0)


def _in_slices(shares: Sequence[Range], rank: int, step: int) -> Range:
    ends = bounds(shares[rank][1] - shares[rank][0], len(shares))
    return ends[step], ends[step + 1]


EXCHANGES: Final = {"all": None, "turns": _in_turns, "slices": _in_slices}
"""Schemes: each rank's images in a pass, of its own; None: all at once."""


class Passes:
    """Section of the split layers, from number ``begin`` to before ``end``; one pass for each rank of ``group``.

    One more flow than passes in flight: while one is in use, the next images move.
    """

    def __init__(self, exchange: str, division: Division, replica: Replica, group: Comm) -> None:
        self._part = EXCHANGES[exchange]
        self.group = group
        self.begin, self.end = division.first_split, division.passes_end
        self._gives = division.boundaries[self.end][0]
        schedule = gpipe if self.end < len(division.parts) else one_forward_one_backward
        order = schedule(0, 1, group.size)
        flying = in_flight(order)
        flows = [ModelParallel(group, division, replica.stages) for _ in range(flying + 1)]
        bindings = replica.bindings(flying, slice(self.begin, self.end))
        self.section = Section(self.begin, bindings, flows, order)

    def own(self, shares: Sequence[Range]) -> list[list[Range]]:
        """Return which of its own images each rank has in each pass, (passes, ranks)."""
        assert self._part is not None, "in passes"
        ranks = range(len(shares))
        return [[self._part(shares, rank, number) for rank in ranks] for number in ranks]

    def rows(self, shares: Sequence[Range]) -> list[list[slice]]:
        """Return the places of each pass's images among those that this rank has after the passes."""
        if self._gives.by_images:
            return [[slice(*own[self.group.rank])] for own in self.own(shares)]
        return [
            [slice(begin + low, begin + high) for (begin, _), (low, high) in zip(shares, own, strict=True)]
            for own in self.own(shares)
        ]

    def microbatches(self, shares: Sequence[Range], labels: Array) -> list[Microbatch]:
        """Return the images of each pass; ``labels`` are those of this rank's share."""
        return [
            Microbatch(
                labels[slice(*own[self.group.rank])],
                tuple(pairwise(accumulate((high - low for low, high in own), initial=0))),
            )
            for own in self.own(shares)
        ]
