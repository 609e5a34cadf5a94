from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from hpcdl.aggregation.parts.traits import half
from hpcdl.fabric.comm import Comm
from hpcdl.fabric.task import Task, join
from hpcdl.nn.replica import Stage
from hpcdl.training.parts.bucketing import check_bucket_bytes
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.mesh import place_among
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.traits import Strategy

WIDTH: Final = 2
"""Buckets under way: one on the links, and the one that follows it."""
BUCKET_FACTOR: Final = 4
"""Default bucket length, in those of ``synchronous``: the next forward hides more than backward alone."""


async def layerwise(
    comm: Comm, session: Session, *, bucket_bytes: int | None = None, updates: str = "ranks"
) -> None:
    """Synchronous SGD with layerwise overlap, also with the next forward (Das et al. 2016; Intel Caffe).

    A layer's gradient is summed as soon as backward has computed it, and the layer is updated at once. Messages
    overlap with the rest of backward, the next batch and the next forward up to that layer. The first layers'
    gradients are complete last and needed first. Therefore large layers are cut into buckets of about
    ``bucket_bytes``, few buckets are under way, and those of the first layers have priority. By default the length
    is four times the one that the links between hosts ask for (:mod:`hpcdl.training.parts.bucketing`). Within a
    host, or with 0, each layer is one bucket and all may be under way at once. The results are those of
    ``synchronous``.

    With ``updates = "server"`` rank 0 sums a layer's gradient, updates the layer and broadcasts its parameters, by
    the reduce and the broadcast of the case's aggregation. Only rank 0 has optimizer state.

    With float16 all layers share one loss scale. A layer whose gradient overflows is not updated in that step; the
    others are, and the scale is halved once.
    """
    replica, inputs = session.replica, session.inputs
    smallest = BUCKET_FACTOR * (session.bucket_bytes or 0) if bucket_bytes is None else bucket_bytes
    buckets = {stage.name: session.buckets(smallest, [stage.span]) for stage in replica.stages}
    layers = LayerUpdates(comm, session, server=updates == "server")
    schedule = PrioritySchedule(comm, buckets, layers.reduce, layers.update, WIDTH if smallest else 0)

    async def wait_for(stage: Stage) -> None:
        await schedule.finished(stage.name)
        if stage is replica.stages[-1]:
            # all updates of the last step are complete
            layers.rate = rate
            await schedule.begin()

    def complete(stage: Stage) -> None:
        schedule.complete(stage.name)

    for step in range(session.steps):
        with session.step(step) as (outcome, rate):
            share = partial(inputs.load, step, *place_among(comm, session.group))
            scale = 1 / session.global_batch
            await gradient(comm, session, share, outcome, scale=scale, before=wait_for, after=complete)
            schedule.end()
        if session.evaluation.due(step + 1):
            for name in buckets:
                await schedule.finished(name)
            if await session.evaluation.test(comm, step + 1):
                return


class LayerUpdates:
    """Sums of buckets, and updates of whole layers, each with its optimizer.

    Every rank updates all layers; or ``server``, rank 0, alone, which broadcasts their parameters.
    """

    def __init__(self, comm: Comm, session: Session, *, server: bool) -> None:
        self._comm, self._session, self._server = comm, session, server
        self._spans = {stage.name: stage.span for stage in session.replica.stages}
        self._optimizers = {
            name: session.optimizer_of(span) for name, span in self._spans.items() if span.stop > span.start
        }
        self.rate = 0.0
        """Learning rate of the gradients that are summed."""

    async def reduce(self, bucket: slice) -> None:
        """Sum a part of the gradient."""
        if self._server:
            await half(self._session.aggregate, "reduce")(self._comm, self._session.replica.gradients[bucket])
        else:
            await self._session.reduce(self._comm, bucket)

    async def update(self, name: str) -> None:
        """Update the layer ``name``."""
        span, replica = self._spans[name], self._session.replica
        parameters, gradients = replica.parameters[span], replica.gradients[span]
        if not self._server or self._comm.rank == 0:
            work = partial(self._optimizers[name].update, parameters, gradients, self.rate)
            await self._comm.compute(f"update {name}", work)
        if self._server:
            await half(self._session.aggregate, "broadcast")(self._comm, parameters)


@dataclass(eq=False)
class PrioritySchedule:
    """Schedule of one rank's gradient sums, with an action after each stage's sum.

    The first layers' buckets overtake, because the next forward needs them first. Buckets start in the order of
    backward while backward runs, and then in the order of the next forward (Jayarajan et al. 2019, P3, section 4;
    Peng et al. 2019, ByteScheduler, section 4).

    All ranks must start buckets in the same order, although backward ends at different times. Therefore they agree
    on the number of buckets that start in backward's order: the minimum over ranks of the number started in the
    last step, increased on a rank whose buckets were all complete when its backward ended.

    ``buckets``: slices of each stage's gradient, stages in the order of the forward. ``aggregate`` sums a bucket
    over all ranks; ``then`` is called with a stage whose buckets are summed. ``width``: buckets under way; 0: all,
    in the order of backward.
    """

    comm: Comm
    buckets: Mapping[str, Sequence[slice]]
    aggregate: Callable[[slice], Coroutine[Any, Any, None]]
    then: Callable[[str], Coroutine[Any, Any, None]]
    width: int

    def __post_init__(self) -> None:
        self._all = sum(map(len, self.buckets.values()))
        self.width = self.width or self._all
        self._early = self._all
        """Buckets that start in the order of backward; rounded up to whole stages."""
        self._agreed: Task[int] | None = None
        self._stages: dict[str, Task[None]] = {}
        self._queue: list[Task[None]] = []
        """Buckets of this step, in the order in which they start."""
        self._starts: list[Task[None]] = []
        """For each bucket a task that ends when the bucket may start, if ``width`` limits them."""
        self._started = self._finished = 0

    async def begin(self) -> None:
        """Prepare for a backward; the buckets of the previous step must be finished."""
        if self._agreed is not None:
            self._early = await self._agreed
        self._stages.clear()
        self._queue.clear()
        self._starts.clear()
        self._started = self._finished = 0

    def complete(self, stage: str) -> None:
        """Start the buckets of ``stage``, which backward has completed, if they are among the early ones."""
        if len(self._queue) < self._early:
            self._start(stage)

    def end(self) -> None:
        """Start all other buckets, in the order of the forward, after the end of backward."""
        early = len(self._queue)
        wanted = early + self.width if self._finished == early else max(self._started, self.width)
        for stage in self.buckets:
            if stage not in self._stages:
                self._start(stage)
        if self.width < self._all:
            # The answer is needed at the next backward only, so that no rank waits for it now.
            self._agreed = self.comm.start(self._agree(min(wanted, self._all)))

    async def finished(self, stage: str) -> None:
        """Wait until the gradient of ``stage`` is summed and ``then`` has returned."""
        if stage in self._stages:
            await self._stages[stage]

    def _start(self, stage: str) -> None:
        if not self.buckets[stage]:
            return
        sums = []
        for bucket in self.buckets[stage]:
            if self.width < self._all:
                # waits for the previous start too: a library's collectives must start in one order on all ranks
                full = self._queue[-self.width :] if len(self._queue) >= self.width else []
                self._starts.append(self.comm.start(join([*self._starts[-1:], *full[:1]])))
            sums.append(self.comm.start(self._sum(bucket, self._starts[-1:])))
            self._queue.append(sums[-1])
        self._stages[stage] = self.comm.start(self._after(stage, sums))

    async def _sum(self, bucket: slice, start: Sequence[Task[None]]) -> None:
        await join(start)
        self._started += 1
        await self.aggregate(bucket)
        self._finished += 1

    async def _after(self, stage: str, sums: Sequence[Task[None]]) -> None:
        await join(sums)
        await self.then(stage)

    async def _agree(self, wanted: int) -> int:
        return int((await self.comm.allgather_words(np.array([wanted]))).min())


TRAITS: Final = Strategy(
    lockstep=True,
    weighs_images=True,
    splits_layers=True,
    compresses=True,
    words={"updates": ("ranks", "server")},
    check=check_bucket_bytes,
    server_updates=lambda settings: bool(settings["updates"] == "server"),
)
