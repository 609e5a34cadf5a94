from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

from hpcdl.fabric.comm import INPUT

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
    replica = session.replica
    optimizers = [deepcopy(session.optimizer) for _ in replica.stages]
    under_way: dict[int, Task[Any]] = {}
    for step in range(session.steps):
        rate = session.learning_rate(step)
        with session.journal.step(session.epoch(step), rate) as outcome:
            x, labels = await comm.compute(INPUT, partial(session.input, step, comm.rank, comm.size))
            outcome.images = len(x)
            for i, stage in enumerate(replica.stages):
                if i in under_way:
                    await under_way.pop(i)
                x = await comm.compute(f"forward {stage.name}", partial(stage.forward, x))
            loss, outcome.correct, gradient = await comm.compute(
                "loss", partial(replica.loss, x, labels, 1 / session.global_batch)
            )
            outcome.loss = loss / max(1, outcome.images)
            dy: Any = gradient  # the first stage has none to hand on
            for i, stage in reversed([*enumerate(replica.stages)]):
                dy = await comm.compute(f"backward {stage.name}", partial(stage.backward, dy))
                if stage.span.start < stage.span.stop:
                    under_way[i] = comm.start(_renew(comm, session, stage, optimizers[i], rate))
        if session.evaluation_due(step + 1):
            for i in sorted(under_way):
                await under_way.pop(i)
            if await session.evaluate(comm, step + 1):
                return


async def _renew(comm: Comm, session: Session, stage: Stage, optimizer: Optimizer, rate: float) -> None:
    """Sum one layer's gradient over all ranks and apply it."""
    replica = session.replica
    gradient = replica.gradients[stage.span]
    await session.aggregate(comm, gradient)
    parameters = replica.parameters[stage.span]
    await comm.compute(f"update {stage.name}", partial(optimizer.update, parameters, gradient, rate))
