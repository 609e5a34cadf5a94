from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

from hpcdl.training.backpropagation import gradient

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Comm, Task
    from hpcdl.nn.replica import Stage
    from hpcdl.optim.protocol import Optimizer
    from hpcdl.training.session import Session


async def layerwise(comm: Comm, session: Session) -> None:
    """Synchronous SGD in which a layer waits for its own parameters only (Das et al. 2016; Intel Caffe).

    A layer's gradient leaves as soon as its backward has computed it, and is summed and applied beside whatever
    follows: the rest of backward, the next batch, and the next forward up to that very layer. The first layers,
    whose gradients come last and whose parameters are wanted first, have the least to hide behind. The numbers are
    those of synchronous training with a bucket per layer.
    """
    optimizers = {stage.name: deepcopy(session.optimizer) for stage in session.replica.stages}
    under_way: dict[str, Task[Any]] = {}

    async def wait_for(stage: Stage) -> None:
        if stage.name in under_way:
            await under_way.pop(stage.name)

    for step in range(session.steps):
        rate = session.learning_rate(step)

        def renew(stage: Stage, rate: float = rate) -> None:
            if stage.span.start < stage.span.stop:
                renewal = _renew(comm, session, stage, optimizers[stage.name], rate)
                under_way[stage.name] = comm.start(renewal)

        with session.journal.step(session.epoch(step), rate) as outcome:
            share = partial(session.input, step, comm.rank, comm.size)
            await gradient(
                comm, session, share, outcome, scale=1 / session.global_batch, before=wait_for, after=renew
            )
        if session.evaluation_due(step + 1):
            for stage in session.replica.stages:
                await wait_for(stage)
            if await session.evaluate(comm, step + 1):
                return


async def _renew(comm: Comm, session: Session, stage: Stage, optimizer: Optimizer, rate: float) -> None:
    """Sum one layer's gradient over all ranks and apply it."""
    replica = session.replica
    gradients = replica.gradients[stage.span]
    await session.aggregate(comm, gradients)
    parameters = replica.parameters[stage.span]
    await comm.compute(f"update {stage.name}", partial(optimizer.update, parameters, gradients, rate))
