from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hpcdl.training.backpropagation import gradient

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Comm, Task
    from hpcdl.nn.replica import Stage
    from hpcdl.training.session import Session


async def synchronous(comm: Comm, session: Session, *, bucket_bytes: int | None = None) -> None:
    """Synchronous data-parallel SGD (FireCaffe, section 3; Das et al. 2016): all ranks step as one.

    Every rank computes the gradient of its share of the global batch, scaled by 1 / global batch, so that the
    plain sum over ranks is the gradient of the mean loss and no rank divides. All ranks make the same update
    and stay equal. With ``bucket_bytes`` the gradient is exchanged in pieces of at least that many bytes,
    each as soon as backward has completed it and beside the rest of backward; without, in one piece after it.
    """
    replica = session.replica
    smallest = float("inf") if bucket_bytes is None else bucket_bytes
    under_way: list[Task[Any]] = []
    end = replica.gradients.size

    def send_complete(stage: Stage) -> None:
        nonlocal end
        complete = replica.gradients[stage.span.start : end]
        if complete.nbytes >= smallest:
            under_way.append(comm.start(session.aggregate(comm, complete)))
            end = stage.span.start

    for step in range(session.steps):
        rate = session.learning_rate(step)
        with session.journal.step(session.epoch(step), rate) as outcome:
            end = replica.gradients.size
            share = partial(session.input, step, comm.rank, comm.size)
            await gradient(comm, session, share, outcome, scale=1 / session.global_batch, after=send_complete)
            await session.aggregate(comm, replica.gradients[:end])
            while under_way:
                await under_way.pop(0)
            await comm.compute(
                "update", partial(session.optimizer.update, replica.parameters, replica.gradients, rate)
            )
        if session.evaluation_due(step + 1) and await session.evaluate(comm, step + 1):
            return
