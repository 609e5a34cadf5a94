import ctypes
import mmap
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final

import numpy as np

from hpcdl.aggregation.parts.traits import half, nodes
from hpcdl.fabric.comm import SHARD_UPDATE, Array, Comm
from hpcdl.fabric.task import Task, join
from hpcdl.fabric.vectors import partition
from hpcdl.nn.replica import Stage
from hpcdl.training.parts.bucketing import check_bucket_bytes
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.traits import Settings, Strategy

_LIBRARY: Final = ctypes.CDLL(None)


def release(vector: Array) -> None:
    """Free the whole pages of a contiguous ``vector``, which loses its values; its next use gets zeros.

    Vectors on a device, and all on other systems than Linux, stay.
    """
    if type(vector) is np.ndarray and sys.platform == "linux":
        begin = -(-vector.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (vector.ctypes.data + vector.nbytes - begin) // mmap.PAGESIZE * mmap.PAGESIZE
        for advice in (mmap.MADV_REMOVE, mmap.MADV_DONTNEED) if length > 0 else ():
            # the first is for memory that processes share, and fails elsewhere
            if _LIBRARY.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), advice) == 0:
                return


def resident_bytes(vector: Array) -> int:
    """Return the bytes of a contiguous ``vector`` in memory, in whole pages; all of them where none are freed."""
    if type(vector) is not np.ndarray or sys.platform != "linux":
        return int(vector.nbytes)
    begin, end = vector.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE, vector.ctypes.data + vector.nbytes
    pages = np.zeros(-(-(end - begin) // mmap.PAGESIZE), np.uint8)
    _LIBRARY.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), pages.ctypes.data_as(ctypes.c_void_p))
    return min(int(vector.nbytes), int((pages & 1).sum()) * mmap.PAGESIZE)


EARLY: Final = 1 / 3
"""Share of the parameters that are gathered during backward, which takes two thirds of a step's computing."""


class Unit:
    """Slice of the flat vectors that is reduced and gathered at once; ``own`` is this rank's part."""

    def __init__(self, span: slice, node: Comm, session: Session) -> None:
        begin, end = partition(session.replica.parameters[span], node.size).begins[node.rank :][:2]
        self.span, self.own = span, slice(span.start + begin, span.start + end)
        self.optimizer: Any = session.optimizer_of(self.own)
        self.exchanged: Task[None] | None = None  # sum of the last gradient, and the update
        self.gathered: Task[None] | None = None  # none while a rank may have its own part only

    def free_others(self, vector: Array) -> None:
        """Free the other ranks' parts of ``vector``."""
        release(vector[self.span.start : self.own.start])
        release(vector[self.own.stop : self.span.stop])


async def zero(
    comm: Comm,
    session: Session,
    *,
    stage: int = 2,
    ranks_per_node: int | None = None,
    bucket_bytes: int | None = None,
) -> None:
    """Synchronous SGD with sharded state, gradients and parameters: ZeRO, stages 1 to 3 (Rajbhandari et al. 2020).

        g[r]  <-  reduce_scatter(gradient of the rank's share, scaled by 1 / global batch)
        x[r]  <-  x[r] - rate * g[r]            rank r has the optimizer's state of part r only
        x     <-  allgather(x[r])

    The results are those of ``synchronous``. A unit is reduced as soon as backward has computed it, and updated at
    once. In stages 1 and 2 units are buckets of about ``bucket_bytes``. They are gathered one after another: the
    last third of the parameters during backward, the others in the order of the next forward, which waits for each
    layer. Stage 2 frees gradients that are reduced, and backward waits while 2 L are not. In stage 3 a unit is a
    layer, or a group of a table of layers. It is gathered before its forward, freed, and gathered again for its
    backward; the next ones are gathered meanwhile, up to 2 L in all.

    With ``ranks_per_node`` parts are divided among so many consecutive ranks, and summed across nodes by the
    aggregation (hybrid sharding). Rules by tensor (``lars``, ``lamb``) wait for all gradients.

    V, L: bytes of the parameters, of the longest unit or layer; K: vectors of the optimizer; p: ranks.
    Bytes with a ring: 2 V (p - 1)/p per rank in stages 1 and 2, 3 V (p - 1)/p in stage 3.
    Memory: 2 V + K V/p in stage 1, V + (1 + K) V/p + 2 L in stage 2, (2 + K) V/p + 4 L in stage 3, in pages.
    """
    size = ranks_per_node or comm.size
    node, across = await nodes(comm, size)
    # gatherings wait for each other on a communicator of their own: all ranks begin a library's in one order
    gathers = await comm.subcommunicator(lambda rank: rank // size, ("gathers", size))
    spans = _layers(session.replica.stages) if stage == 3 else session.buckets(bucket_bytes)
    units = Units(comm, session, stage, node, across, gathers, spans)
    for step in range(session.steps):
        with session.step(step) as (outcome, rate):
            units.begin(rate)
            share = partial(session.inputs.load, step, comm.rank, comm.size)
            scale, forward, backward = 1 / session.global_batch, partial(units.use, -1), partial(units.use, 1)
            hooks: Any = {"before": forward, "again": backward, "after": units.complete}
            await gradient(comm, session, share, outcome, scale=scale, **hooks)
            await units.end()
        if session.evaluation.due(step + 1) and not session.replica.backend.sizes_only:
            await units.gather_all()
            if await session.evaluation.test(comm, step + 1):
                return


@dataclass(eq=False)
class Units:
    """Units of a rank's replica, in the order of backward: their sums, updates and gatherings.

    ``node``: the ranks that share the parts; ``across``: those with the same part; ``gathers``: ``node`` again.
    """

    comm: Comm
    session: Session
    stage: int
    node: Comm
    across: Comm
    gathers: Comm
    spans: Sequence[slice]

    def __post_init__(self) -> None:
        session, replica = self.session, self.session.replica
        self._parameters, self._gradients = replica.parameters, replica.gradients
        self._units = [Unit(span, self.node, session) for span in self.spans]
        self._by_tensor = hasattr(session.optimizer, "phases")
        gathers_early = self.stage < 3 and not self._by_tensor
        late = self._parameters.size * (1 - EARLY if gathers_early else 1)
        self._early = [unit for unit in self._units if unit.span.start >= late]
        self._window = 2 * max(map(_length, [*self.spans, *(layer.span for layer in replica.stages)]))
        """Elements that wait for their sum in stage 2, or are gathered in stage 3, at most."""
        self._last: Task[None] | None = None
        """The last gathering."""

    def begin(self, rate: float) -> None:
        """Begin a step with its learning rate; in stage 3 no unit is gathered."""
        self._rate = rate
        self._computed = 0
        """Units whose gradient backward has computed."""
        self._current = (-1, 0)
        """Number of the unit in use in stage 3, and the direction: -1 forward, 1 backward."""
        for unit in self._units if self.stage == 3 else []:
            self._free(unit)

    async def use(self, direction: int, layer: Stage) -> None:
        """Wait for the layer's parameters, and for room for its gradient."""
        if self.stage > 1:
            await self._limit_gradients(layer)
        for number, unit in enumerate(self._units):
            if _overlap(unit.span, layer.span):
                if self.stage == 3 and self._current != (number, direction):
                    self._gather_ahead(number, direction)
                await join([unit.gathered])

    async def _limit_gradients(self, layer: Stage) -> None:
        """Wait until the gradients that are not summed, with the layer's, are no longer than the window."""
        computed = self._units[: self._computed]
        room = self._window - (computed[-1].span.start if computed else self._parameters.size) + layer.span.start
        for unit in reversed(computed):
            room -= _length(unit.span)
            await join([unit.exchanged] if room < 0 else [])

    def _gather_ahead(self, number: int, direction: int) -> None:
        """Free the unit in use, and gather the one with this number and the next ones, as long as the window."""
        self._free(self._units[self._current[0]])
        self._current = (number, direction)
        room = self._window
        for unit in self._units[number::direction]:
            room -= _length(unit.span)
            if room >= 0:
                self._gather(unit)

    def complete(self, layer: Stage) -> None:
        """Sum and update the units that backward of ``layer`` has completed, and gather early ones again."""
        if self.session.journal.steps == 1:  # the second step, which is not timed
            resident = resident_bytes(self._parameters) + resident_bytes(self._gradients)
            self.session.resident_bytes = max(resident, self.session.resident_bytes or 0)
        while self._computed < len(self._units) and self._units[self._computed].span.start >= layer.span.start:
            unit = self._units[self._computed]
            unit.exchanged, unit.gathered = self.comm.start(self._exchange(unit, self._rate)), None
            if unit in self._early:
                self._gather(unit)
            self._computed += 1

    async def end(self) -> None:
        """Update by tensors if the optimizer does, and gather buckets for the next forward."""
        if self._by_tensor:
            await join(unit.exchanged for unit in self._units)
            await self._update_by_tensor()
        for unit in reversed(self._units if self.stage < 3 else []):
            self._gather(unit)

    async def gather_all(self) -> None:
        """Gather all parameters and wait for them."""
        for unit in reversed(self._units):
            await self._gather(unit)

    def _gather(self, unit: Unit) -> Task[None]:
        if unit.gathered is None:
            unit.gathered = self._last = self.comm.start(self._gathering(unit, self._last))
        return unit.gathered

    async def _gathering(self, unit: Unit, before: Task[None] | None) -> None:
        await join([unit.exchanged, before])
        parts = partition(self._parameters[unit.span], self.gathers.size)
        await half(self.session.aggregate, "allgather")(self.gathers, parts)

    def _free(self, unit: Unit) -> None:
        unit.free_others(self._parameters)
        unit.gathered = None

    async def _exchange(self, unit: Unit, rate: float) -> None:
        """Sum a unit's gradient, and update this rank's part."""
        session, own = self.session, unit.own
        parts = partition(self._gradients[unit.span], self.node.size)
        await half(session.aggregate, "reduce_scatter")(self.node, parts)
        if self.across.size > 1:
            await session.aggregate(self.across, self._gradients[own])
        if self.stage > 1:
            unit.free_others(self._gradients)
        if not self._by_tensor:
            part, gradient = self._parameters[own], self._gradients[own]
            await session.update_part(self.comm, unit.optimizer, part, gradient, rate)

    async def _update_by_tensor(self) -> None:
        """Update all parts by a rule that needs norms of whole tensors, which the ranks of the node sum."""
        tensors, updates = self.session.replica.tensors, []
        squares = np.zeros((len(tensors), 2))
        for unit in self._units:
            part, gradient = self._parameters[unit.own], self._gradients[unit.own]
            update = unit.optimizer.phases(part, gradient, self._rate)
            inside = [number for number, tensor in enumerate(tensors) if _overlap(tensor.span, unit.own)]
            squares[inside] += await self.comm.apply(SHARD_UPDATE, partial(next, update), gradient.nbytes)
            updates.append((update, inside))
            unit.optimizer.steps += 1
        await self.node.native("allreduce", squares.reshape(-1))
        for update, inside in updates:
            with suppress(StopIteration):
                update.send(squares[inside])


def _layers(stages: Sequence[Stage]) -> list[slice]:
    """Return the slices of layers, or of groups of them, that have parameters, in the order of backward."""
    groups = [[*group] for _, group in groupby(stages, lambda stage: stage.group or stage.name)]
    spans = [slice(group[0].span.start, group[-1].span.stop) for group in reversed(groups)]
    return [span for span in spans if span.start < span.stop]


def _overlap(span: slice, other: slice) -> bool:
    return bool(span.start < other.stop and span.stop > other.start)


def _length(span: slice) -> int:
    return int(span.stop - span.start)


def _check(ranks: int, settings: Settings) -> None:
    check_bucket_bytes(ranks, settings)
    stage, size = settings["stage"], settings["ranks_per_node"]
    if stage not in (1, 2, 3):
        raise ValueError(f"stage: must be 1, 2 or 3, not {stage}")
    if size is not None and (size < 1 or ranks % size):
        raise ValueError(f"ranks_per_node: {ranks} ranks cannot be divided into nodes of {size}")
    if stage == 3 and settings["bucket_bytes"] is not None:
        raise ValueError("bucket_bytes: stage 3 gathers layers; leave this setting out")


TRAITS: Final = Strategy(
    lockstep=True,
    weighs_images=True,
    scales_loss=False,
    shards_state=True,
    check=_check,
    title=lambda _ranks, settings: "ZeRO-{stage}{}".format(
        f" within {settings['ranks_per_node']} ranks" if settings["ranks_per_node"] else "", **settings
    ),
)
