from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hpcdl.training.parts.bucketing import check_bucket_bytes
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.priority import WIDTH, PrioritySchedule
from hpcdl.training.parts.replicas import place_among
from hpcdl.training.parts.traits import Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.fabric.comm import Comm
    from hpcdl.nn.stage import Stage
    from hpcdl.training.parts.session import Session

LENGTH: Final = 4
"""Default bucket length, in those of ``synchronous``: the next forward hides more than backward alone."""


async def layerwise(comm: Comm, session: Session, *, bucket_bytes: int | None = None) -> None:
    """Synchronous SGD with layerwise overlap, also with the next forward (Das et al. 2016; Intel Caffe).

    A layer's gradient is summed as soon as backward has computed it, and the layer is updated at once. Messages
    overlap with the rest of backward, the next batch and the next forward up to that layer. The first layers'
    gradients are complete last and needed first. Therefore large layers are cut into buckets of about
    ``bucket_bytes``, few buckets are under way, and those of the first layers have priority
    (:mod:`hpcdl.training.parts.priority`). By default the length is four times the one that the links between
    hosts ask for (:mod:`hpcdl.training.parts.bucketing`). Within a host, or with 0, each layer is one bucket and
    all may be under way at once. The results are those of ``synchronous``.

    Each layer has its own optimizer state; together they are as large as one for the whole network. With float16
    all layers share one loss scale. A layer whose gradient overflows is not updated in that step; the others are,
    and the scale is halved once.
    """
    replica = session.replica
    gradients, parameters = replica.gradients, replica.parameters
    stages = {stage.name: stage for stage in replica.stages}
    optimizers = {
        name: session.optimizer_of(stage.span)
        for name, stage in stages.items()
        if stage.span.stop > stage.span.start
    }
    smallest = LENGTH * (session.bucket_bytes or 0) if bucket_bytes is None else bucket_bytes
    step, rate = 0, 0.0

    async def aggregate(bucket: slice) -> None:
        await session.reduce(comm, bucket)

    async def update(name: str) -> None:
        span = stages[name].span
        work = partial(optimizers[name].update, parameters[span], gradients[span], rate)
        await comm.compute(f"update {name}", work)

    elements = max(1, smallest // gradients.itemsize) if smallest else max(1, gradients.size)
    cut = {name: session.buckets([stage.span], elements) for name, stage in stages.items()}
    schedule = PrioritySchedule(comm, cut, aggregate, update, WIDTH if smallest else 0)

    async def wait_for(stage: Stage) -> None:
        nonlocal rate
        await schedule.finished(stage.name)
        if stage is replica.stages[-1]:
            # all updates of the last step are complete
            rate = session.learning_rate(step)
            await schedule.begin()

    def complete(stage: Stage) -> None:
        schedule.complete(stage.name)

    for step in range(session.steps):
        with session.journal.step(session.epoch(step), session.learning_rate(step)) as outcome:
            share = partial(session.input, step, *place_among(comm, session))
            scale = 1 / session.global_batch
            await gradient(comm, session, share, outcome, scale=scale, before=wait_for, after=complete)
            schedule.end()
        if session.evaluation_due(step + 1):
            for name in stages:
                await schedule.finished(name)
            if await session.evaluate(comm, step + 1):
                return


def check(_ranks: int, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for an invalid ``bucket_bytes``."""
    check_bucket_bytes(settings["bucket_bytes"])


TRAITS: Final = Strategy(lockstep=True, weighs_images=True, splits_layers=True, compresses=True, check=check)
