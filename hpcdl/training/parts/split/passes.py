"""Hybrid parallelism in passes: fully connected layers work on one part of the group's batch after the other.

Krizhevsky 2014, section 4: convolutions are data-parallel, so that each of K ranks has the activations of its own
images; fully connected layers are split and need those of all. Scheme (a), ``all``, gathers all images at once. In
K passes the activations of the next part move while the fully connected layers work on the present one. Scheme
(b), ``turns``: each rank sends its images in turn. Scheme (c), ``slices``: in each pass every rank sends 1/K of
its images. All three send the same bytes and give the same gradient.

Batch normalisation needs the statistics of all images. So the passes end before the first one among these layers:
the layers from there on work on the whole batch, after the forwards of all passes and before their backwards.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from hpcdl.data.parts.sharding import bounds
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import Task
from hpcdl.fabric.vectors import empty
from hpcdl.nn.replica import Replica
from hpcdl.nn.split.division import Division
from hpcdl.nn.split.part import Range
from hpcdl.training.parts.split.flow import ModelParallel
from hpcdl.training.parts.split.neighbours import Neighbour
from hpcdl.training.parts.split.schedules import Microbatch, Section, gpipe, in_flight, one_forward_one_backward


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


class Moving(Neighbour):
    """Source of the passes: this rank's images ``x``. The next part moves while the layers work on one."""

    def __init__(
        self, passes: Passes, x: Array, shares: Sequence[Range], microbatches: Sequence[Microbatch]
    ) -> None:
        super().__init__()
        self.gradient = np.empty_like(x)
        """Gradient of ``x``, complete after :meth:`finish`."""
        self._passes = passes
        self._x = x
        self._own = [slice(*own[passes.group.rank]) for own in passes.own(shares)]
        self._shares = [microbatch.shares for microbatch in microbatches]
        self._arriving: dict[int, Task[Array]] = {}

    def expect(self, microbatch: int, images: int) -> None:  # noqa: ARG002
        if microbatch not in self._arriving and microbatch < len(self._own):
            begin, flows = self._passes.begin, self._passes.section.flows
            work = flows[microbatch % len(flows)].forward(
                begin, self._x[self._own[microbatch]], self._shares[microbatch]
            )
            self._arriving[microbatch] = self._passes.group.start(work)

    async def received(self, microbatch: int) -> Array:
        arrived = await self._arriving[microbatch]
        self.expect(microbatch + 1, 0)
        return arrived

    async def send(self, microbatch: int, array: Any) -> None:
        self._sends[microbatch] = self._passes.group.start(self._give_back(microbatch, array))

    async def _give_back(self, microbatch: int, dx: Array) -> None:
        flows = self._passes.section.flows
        flow, shares = flows[microbatch % len(flows)], self._shares[microbatch]
        self.gradient[self._own[microbatch]] = await flow.backward(self._passes.begin, dx, shares)


class Later(Neighbour):
    """Sink of a section whose outputs a later section takes as a whole batch.

    ``run(x)`` computes the later section and returns the gradient of ``x``. ``rows`` are the places of each
    microbatch's images in ``x``; None: there is one microbatch.
    """

    def __init__(
        self, comm: Comm, run: Callable[[Array], Awaitable[Array]], rows: Sequence[Sequence[slice]] | None = None
    ) -> None:
        super().__init__()
        self._comm = comm
        self._run = run
        self._rows = rows
        self._outputs: dict[int, Array] = {}
        self._gradient: Array | None = None

    async def send(self, microbatch: int, array: Any) -> None:
        self._outputs[microbatch] = array

    async def received(self, microbatch: int) -> Array:
        """See :class:`hpcdl.training.parts.split.neighbours.Neighbour`; all outputs are there."""
        if self._rows is None:
            return await self._run(self._outputs[microbatch])
        if self._gradient is None:
            whole = _batch(self._outputs[0], sum(map(len, self._outputs.values())))
            for number, part in self._outputs.items():
                copy = partial(_copy, whole, self._rows[number], part, back=False)
                await self._comm.apply("copy", copy, part.nbytes)
            self._gradient = await self._run(whole)
        own = _batch(self._gradient, len(self._outputs[microbatch]))
        copy = partial(_copy, self._gradient, self._rows[microbatch], own, back=True)
        await self._comm.apply("copy", copy, own.nbytes)
        return own


def _batch(like: Array, images: int) -> Array:
    shape = like.shape[1:]
    return empty(images * math.prod(shape), like).reshape(images, *shape)


def _copy(whole: Array, rows: Sequence[slice], part: Array, *, back: bool) -> None:
    """Write the images of ``part`` into ``rows`` of ``whole``; ``back``: those of ``whole`` into ``part``."""
    begin = 0
    for place in rows:
        own = slice(begin, begin := begin + place.stop - place.start)
        if back:
            part[own] = whole[place]
        else:
            whole[place] = part[own]
