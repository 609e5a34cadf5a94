"""Flow of activations, and of their gradients, within a model group, from one layout to another."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Final

from hpcdl.aggregation import direct
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import join
from hpcdl.fabric.vectors import Parts, assign, empty
from hpcdl.nn.replica import Stage
from hpcdl.nn.split.division import Division
from hpcdl.nn.split.part import Box, Layout, Range, extents, intersection, volume, within


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
