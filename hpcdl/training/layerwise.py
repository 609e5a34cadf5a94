from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hpcdl.training.backpropagation import gradient
from hpcdl.training.bucketing import buckets, check_bucket_bytes
from hpcdl.training.front_first import WIDTH, FrontFirst

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.fabric.comm import Comm
    from hpcdl.nn.replica import Stage
    from hpcdl.training.session import Session

WEIGHS: Final = True

BUCKETS: Final = 4
"""To a piece: what the next forward can hide need not be cut as small as what only backward can."""


async def layerwise(comm: Comm, session: Session, *, bucket_bytes: int | None = None) -> None:
    """Synchronous SGD in which a layer waits for its own parameters only (Das et al. 2016; Intel Caffe).

    A layer's gradient leaves as soon as its backward has computed it, and is summed and applied beside whatever
    follows: the rest of backward, the next batch, and the next forward up to that very layer. The first layers,
    whose gradients come last and whose parameters are wanted first, have the least to hide behind: a large layer
    goes in pieces of about ``bucket_bytes``, of which few are under way, and those of the first layers overtake
    the others (:mod:`hpcdl.training.front_first`). Unless it is given the length is four times what the links
    between hosts say, see :mod:`hpcdl.training.bucketing`; within a host, or with 0, layers go whole and all at
    once. The numbers are those of synchronous training.
    """
    replica = session.replica
    gradients, parameters = replica.gradients, replica.parameters
    stages = {stage.name: stage for stage in replica.stages}
    optimizers = {name: deepcopy(session.optimizer) for name in stages}
    smallest = BUCKETS * (session.bucket_bytes or 0) if bucket_bytes is None else bucket_bytes
    step, rate = 0, 0.0

    async def add_up(piece: slice) -> None:
        await session.aggregate(comm, gradients[piece])

    async def apply(name: str) -> None:
        span = stages[name].span
        update = partial(optimizers[name].update, parameters[span], gradients[span], rate)
        await comm.compute(f"update {name}", update)

    elements = max(1, smallest // gradients.itemsize) if smallest else max(1, gradients.size)
    pieces = {name: buckets([stage.span], elements) for name, stage in stages.items()}
    sums = FrontFirst(comm, pieces, add_up, apply, WIDTH if smallest else 0)

    async def wait_for(stage: Stage) -> None:
        nonlocal rate
        await sums.finished(stage.name)
        if stage is replica.stages[-1]:
            # all of the last step's updates are made
            rate = session.learning_rate(step)
            await sums.begin()

    def complete(stage: Stage) -> None:
        sums.complete(stage.name)

    for step in range(session.steps):
        with session.journal.step(session.epoch(step), session.learning_rate(step)) as outcome:
            share = partial(session.input, step, comm.rank, comm.size)
            scale = 1 / session.global_batch
            await gradient(comm, session, share, outcome, scale=scale, before=wait_for, after=complete)
            sums.end()
        if session.evaluation_due(step + 1):
            for name in stages:
                await sums.finished(name)
            if await session.evaluate(comm, step + 1):
                return


def check(_ranks: int, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for a length that is none."""
    check_bucket_bytes(settings["bucket_bytes"])
