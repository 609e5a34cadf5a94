from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from hpcdl.aggregation.parts.collectives import half
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import Task
from hpcdl.fabric.vectors import partition
from hpcdl.nn.stage import Stage
from hpcdl.training.parts.bucketing import check_bucket_bytes
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.pages import release, resident_bytes
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.traits import Settings, Strategy

EARLY: Final = 1 / 3
"""Share of the parameters that are gathered during backward, which takes two thirds of a step's computing."""


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

    The case's aggregation needs a reduce_scatter and an allgather. The results are those of ``synchronous``.

    Stages 1 and 2 work on buckets of about ``bucket_bytes``, as ``synchronous`` does; a bucket is reduced as soon
    as backward has computed it, and each rank updates its part at once. Buckets are gathered one after another:
    the last third of the parameters during backward, the others in the order of the next forward, which waits for
    each layer. Stage 2 also frees a bucket's gradients as soon as they are reduced; while one is, backward computes
    the next one only. In stage 3 a rank keeps its parts of the parameters only. A layer is gathered before its forward, freed after it, and gathered again for
    its backward; the next layer is gathered meanwhile. Tests use the whole network.

    With ``ranks_per_node`` = g parts are divided among the ranks of a node, g consecutive ones, and summed across
    nodes by the aggregation (hybrid sharding).

    A rule with a rate for each tensor needs norms of tensors that are cut: all gradients are reduced, squares of
    two norms a tensor are summed by the library, and then all parts are updated.

    V: bytes of the parameters; K: vectors of the optimizer; L: bytes of the longest bucket or layer.
    Bytes with a ring: 2 V (p - 1)/p per rank in stages 1 and 2, 3 V (p - 1)/p in stage 3.
    Memory: 2 V + K V/p in stage 1, V + (1 + K) V/p + 2 L in stage 2, (2 + K) V/p + 4 L in stage 3. Pages are
    freed, so that parts round up to pages. Vectors on a GPU are not freed.
    """
    shards = Shards(comm, session, stage)
    await shards.divide(ranks_per_node or comm.size, bucket_bytes)
    for step in range(session.steps):
        rate = session.learning_rate(step)
        with session.journal.step(session.inputs.epoch(step), rate) as outcome:
            shards.begin(rate, measure=step == min(1, session.steps - 1))
            share = partial(session.inputs.load, step, comm.rank, comm.size)
            await gradient(
                comm,
                session,
                share,
                outcome,
                scale=1 / session.global_batch,
                before=shards.before_forward,
                again=shards.before_backward,
                after=shards.after_backward,
            )
            await shards.end()
        if session.evaluation.due(step + 1):
            await shards.gather_all()
            if await session.evaluation.test(comm, step + 1):
                return


class Unit:
    """Slice of the flat vectors that is reduced and gathered at once: a bucket, or a layer's parameters."""

    def __init__(self, span: slice, node: Comm, session: Session) -> None:
        begins = partition(session.replica.gradients[span], node.size).begins
        self.span = span
        self.own = slice(span.start + begins[node.rank], span.start + begins[node.rank + 1])
        """This rank's part."""
        self.optimizer: Any = session.optimizer_of(self.own)
        spans = [tensor.span for tensor in session.replica.tensors]
        self.tensors = [n for n, at in enumerate(spans) if at.start < self.own.stop and at.stop > self.own.start]
        """Numbers of the tensors that the part has entries of."""
        self.exchanged: Task[None] | None = None
        """Sum of the last gradient, and the update."""
        self.gathered: Task[None] | None = None
        """Gathering of the parameters; None while a rank may have its own part only."""

    def free_others(self, vector: Array) -> None:
        """Free the other ranks' parts of ``vector``."""
        release(vector[self.span.start : self.own.start])
        release(vector[self.own.stop : self.span.stop])


class Shards:
    """One rank's side of the sharded step. Reductions run at the same time, gatherings one after another.

    They have communicators of their own, because a library's collectives must begin in one order on all ranks.
    """

    def __init__(self, comm: Comm, session: Session, stage: int) -> None:
        self._comm = self._node = comm
        self._session = session
        self._stage = stage
        self._parameters, self._gradients = session.replica.parameters, session.replica.gradients
        self._reduce_scatter = half(session.aggregate, "reduce_scatter")
        self._allgather = half(session.aggregate, "allgather")
        self._by_tensor = hasattr(session.optimizer, "updates")
        self._across: Comm | None = None
        self._units: list[Unit] = []
        """In the order of backward."""
        self._complete = 0
        """Number of units whose gradients this step's backward has computed."""
        self._current: tuple[Unit, int] | None = None
        """In stage 3 the unit that layers use, and the step to the next one."""
        self._last: Task[None] | None = None
        """The gathering that was started last."""
        self._rate = 0.0
        self._measuring = False

    async def divide(self, size: int, bucket_bytes: int | None) -> None:
        """Divide the vectors among ``size`` consecutive ranks; all ranks call."""
        comm, session = self._comm, self._session
        self._gathers = await comm.subcommunicator(lambda rank: rank // size, ("gathers", size))
        if size < comm.size:
            self._node = await comm.subcommunicator(lambda rank: rank // size, ("node", size))
            self._across = await comm.subcommunicator(lambda rank: rank % size, ("across", size))
        stages = session.replica.stages
        if self._stage == 3:
            spans = [stage.span for stage in reversed(stages) if stage.span.start < stage.span.stop]
        else:
            spans = session.buckets(session.bucket_bytes if bucket_bytes is None else bucket_bytes)
        self._units = [Unit(span, self._node, session) for span in spans]
        self._of = {
            stage.name: [
                n
                for n, unit in enumerate(self._units)
                if unit.span.start < stage.span.stop and unit.span.stop > stage.span.start
            ]
            for stage in stages
        }
        late = sum(span.stop - span.start for span in spans) * (1 - EARLY)
        self._early = sum(span.start >= late for span in spans)

    def begin(self, rate: float, *, measure: bool) -> None:
        """Begin a step; the greatest memory of one is measured."""
        self._rate, self._measuring, self._complete = rate, measure, 0
        if self._stage == 3:
            for unit in self._units:
                self._free(unit)
            self._gather(len(self._units) - 1)

    async def before_forward(self, stage: Stage) -> None:
        """Wait for the parameters of a layer."""
        if self._stage == 3:
            await self._use(stage, -1)
            return
        for number in self._of[stage.name]:
            if (gathered := self._units[number].gathered) is not None:
                await gathered

    async def before_backward(self, stage: Stage) -> None:
        """Wait for the parameters of a layer, freed after its forward, and for memory of its gradients."""
        if self._stage > 1:
            for unit in self._units[: max(0, self._complete - 1)]:
                if unit.exchanged is not None:
                    await unit.exchanged
        if self._stage == 3:
            await self._use(stage, 1)

    def after_backward(self, stage: Stage) -> None:
        """Start to reduce the units whose gradients are complete."""
        self._measure()
        while self._complete < len(self._units):
            unit = self._units[self._complete]
            if unit.span.start < stage.span.start:
                return
            if self._stage < 3:
                unit.gathered = None
            unit.exchanged = self._comm.start(self._exchange(unit, self._rate))
            if self._stage < 3 and self._complete < self._early and not self._by_tensor:
                self._gather(self._complete)
            self._complete += 1

    async def end(self) -> None:
        """Start all other work of the step."""
        if self._by_tensor:
            await self._update_by_tensor()
        if self._stage == 3:
            self._leave()
        else:
            for number in reversed(range(len(self._units))):
                self._gather(number)

    async def gather_all(self) -> None:
        """Gather all parameters."""
        for number in reversed(range(len(self._units))):
            await self._gather(number)

    def _gather(self, number: int) -> Task[None]:
        """Start to gather a unit, unless it is."""
        unit = self._units[number]
        if unit.gathered is None:
            unit.gathered = self._last = self._comm.start(self._gathering(unit, self._last))
        return unit.gathered

    async def _gathering(self, unit: Unit, before: Task[None] | None) -> None:
        for task in (unit.exchanged, before):
            if task is not None:
                await task
        await self._allgather(self._gathers, partition(self._parameters[unit.span], self._node.size))

    async def _use(self, stage: Stage, step: int) -> None:
        """Gather the unit of a layer, and the unit that follows; free the one before."""
        numbers = self._of[stage.name]
        if not numbers or self._current == (self._units[numbers[0]], step):
            return
        self._measure()
        self._leave()
        gathered = self._gather(numbers[0])
        if 0 <= numbers[0] + step < len(self._units):
            self._gather(numbers[0] + step)
        await gathered
        self._current = (self._units[numbers[0]], step)

    def _leave(self) -> None:
        """Free the unit in use."""
        if self._current is not None:
            self._free(self._current[0])
            self._current = None

    def _free(self, unit: Unit) -> None:
        unit.free_others(self._parameters)
        unit.gathered = None

    async def _exchange(self, unit: Unit, rate: float) -> None:
        """Sum a unit's gradients, each part on its rank, and update this rank's part."""
        await self._reduce_scatter(self._node, partition(self._gradients[unit.span], self._node.size))
        if self._across is not None:
            await self._session.aggregate(self._across, self._gradients[unit.own])
        if self._stage > 1:
            unit.free_others(self._gradients)
        if not self._by_tensor:
            gradients = self._gradients[unit.own]
            work = partial(unit.optimizer.update, self._parameters[unit.own], gradients, rate)
            await self._comm.apply("shard update", work, gradients.nbytes)

    async def _update_by_tensor(self) -> None:
        """Update all parts by norms of whole tensors."""
        parts = []
        for unit in self._units:
            if unit.exchanged is not None:
                await unit.exchanged
            vectors = self._parameters[unit.own], self._gradients[unit.own]
            begun: Any = partial(list, unit.optimizer.updates(*vectors, self._rate))
            updates = await self._comm.apply("shard update", begun, vectors[0].nbytes)
            parts += [*zip(unit.tensors, updates, strict=False)]
            unit.optimizer.steps += 1
        squares = np.zeros((len(self._session.replica.tensors), 2))
        for number, (own, _) in parts:
            squares[number] += own
        await self._node.native("allreduce", squares.reshape(-1))
        for number, (_, update) in parts:
            await self._comm.apply("shard update", partial(update, *map(float, squares[number])), 0)

    def _measure(self) -> None:
        if self._measuring:
            resident = resident_bytes(self._parameters) + resident_bytes(self._gradients)
            self._session.resident_bytes = max(resident, self._session.resident_bytes or 0)


def check(ranks: int, settings: Settings) -> None:
    """Raise ValueError for a stage or a number of ranks per node that cannot be."""
    check_bucket_bytes(ranks, settings)
    stage, size = settings["stage"], settings["ranks_per_node"] or ranks
    if stage not in (1, 2, 3):
        raise ValueError(f"stage: must be 1, 2 or 3, not {stage}")
    if size < 1 or ranks % size:
        raise ValueError(f"ranks_per_node: {ranks} ranks cannot be divided into nodes of {size}")
    if stage == 3 and settings["bucket_bytes"] is not None:
        raise ValueError("bucket_bytes: stage 3 gathers layers; leave this setting out")


TRAITS: Final = Strategy(
    lockstep=True,
    weighs_images=True,
    scales_loss=False,
    shards_state=True,
    check=check,
    title=lambda _ranks, settings: f"ZeRO-{settings['stage']}",
)
