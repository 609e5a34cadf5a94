import ctypes
import mmap
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, Final

import numpy as np

from hpcdl.aggregation.parts.collectives import half
from hpcdl.fabric.comm import SHARD_UPDATE, Array, Comm
from hpcdl.fabric.task import Task
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
    replica, size = session.replica, ranks_per_node or comm.size
    parameters, gradients = replica.parameters, replica.gradients
    node = await comm.subcommunicator(lambda rank: rank // size, ("node", size))
    # gatherings wait for each other on a communicator of their own: all ranks begin a library's in one order
    gathers = await comm.subcommunicator(lambda rank: rank // size, ("gathers", size))
    across = await comm.subcommunicator(lambda rank: rank % size, ("across", size))
    reduce_scatter, allgather = half(session.aggregate, "reduce_scatter"), half(session.aggregate, "allgather")
    smallest = session.bucket_bytes if bucket_bytes is None else bucket_bytes
    spans = _layers(replica.stages) if stage == 3 else session.buckets(smallest)
    units = [Unit(span, node, session) for span in spans]
    by_tensor = hasattr(session.optimizer, "halves")
    late = parameters.size * (1 - EARLY if stage < 3 and not by_tensor else 1)
    early = [unit for unit in units if unit.span.start >= late]
    window = 2 * max(map(_length, [*spans, *(layer.span for layer in replica.stages)]))
    computed, current = 0, (-1, 0)
    last: Task[None] | None = None

    def gather(unit: Unit) -> Task[None]:
        nonlocal last
        if unit.gathered is None:
            unit.gathered = last = comm.start(gathering(unit, last))
        return unit.gathered

    async def gathering(unit: Unit, before: Task[None] | None) -> None:
        await _join([unit.exchanged, before])
        await allgather(gathers, partition(parameters[unit.span], size))

    def free(unit: Unit) -> None:
        unit.free_others(parameters)
        unit.gathered = None

    async def use(ahead: int, layer: Stage) -> None:
        nonlocal current
        room = window - (units[computed - 1].span.start if computed else parameters.size) + layer.span.start
        for unit in reversed(units[:computed] if stage > 1 else []):
            room -= _length(unit.span)
            await _join([unit.exchanged] if room < 0 else [])
        for number, unit in enumerate(units):
            if unit.span.start < layer.span.stop and unit.span.stop > layer.span.start:
                if stage == 3 and current != (number, ahead):
                    free(units[current[0]])
                    current = (number, ahead)
                    room = window
                    for needed in units[number::ahead]:
                        room -= _length(needed.span)
                        if room >= 0:
                            gather(needed)
                await _join([unit.gathered])

    async def exchange(unit: Unit, rate: float) -> None:
        await reduce_scatter(node, partition(gradients[unit.span], size))
        if across.size > 1:
            await session.aggregate(across, gradients[unit.own])
        if stage > 1:
            unit.free_others(gradients)
        if not by_tensor:
            await session.update_part(comm, unit.optimizer, parameters[unit.own], gradients[unit.own], rate)

    def complete(layer: Stage) -> None:
        nonlocal computed
        if session.journal.steps == 1:  # the second step, which is not timed
            resident = resident_bytes(parameters) + resident_bytes(gradients)
            session.resident_bytes = max(resident, session.resident_bytes or 0)
        while computed < len(units) and units[computed].span.start >= layer.span.start:
            unit = units[computed]
            unit.exchanged, unit.gathered = comm.start(exchange(unit, rate)), None
            if unit in early:
                gather(unit)
            computed += 1

    for step in range(session.steps):
        rate = session.learning_rate(step)
        with session.journal.step(session.inputs.epoch(step), rate) as outcome:
            computed, current = 0, (-1, 0)
            for unit in units if stage == 3 else []:
                free(unit)
            share = partial(session.inputs.load, step, comm.rank, comm.size)
            hooks: Any = {"before": partial(use, -1), "again": partial(use, 1), "after": complete}
            await gradient(comm, session, share, outcome, scale=1 / session.global_batch, **hooks)
            if by_tensor:
                await _join(unit.exchanged for unit in units)
                await _update_by_tensor(comm, node, session, units, rate)
            for unit in reversed(units if stage < 3 else []):
                gather(unit)
        if session.evaluation.due(step + 1) and not replica.backend.sizes_only:
            for unit in reversed(units):
                await gather(unit)
            if await session.evaluation.test(comm, step + 1):
                return


def _layers(stages: Sequence[Stage]) -> list[slice]:
    """Return the slices of layers, or of groups of them, that have parameters, in the order of backward."""
    groups = [[*group] for _, group in groupby(stages, lambda stage: stage.group or stage.name)]
    spans = [slice(group[0].span.start, group[-1].span.stop) for group in reversed(groups)]
    return [span for span in spans if span.start < span.stop]


async def _update_by_tensor(comm: Comm, node: Comm, session: Session, units: Sequence[Unit], rate: float) -> None:
    replica, updates = session.replica, []
    squares = np.zeros((len(replica.tensors), 2))
    for unit in units:
        own, tensors = unit.own, replica.tensors
        update = unit.optimizer.halves(replica.parameters[own], replica.gradients[own], rate)
        inside = [n for n, at in enumerate(tensors) if at.span.start < own.stop and at.span.stop > own.start]
        squares[inside] += await comm.apply(SHARD_UPDATE, partial(next, update), replica.gradients[own].nbytes)
        updates.append((update, inside))
        unit.optimizer.steps += 1
    await node.native("allreduce", squares.reshape(-1))
    for update, inside in updates:
        with suppress(StopIteration):
            update.send(squares[inside])


def _length(span: slice) -> int:
    return int(span.stop - span.start)


async def _join(tasks: Iterable[Task[None] | None]) -> None:
    for task in filter(None, tasks):
        await task


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
