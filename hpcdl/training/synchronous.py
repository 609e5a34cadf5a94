from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hpcdl.fabric.comm import INPUT

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Comm, Task
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
    for step in range(session.steps):
        rate = session.learning_rate(step)
        with session.journal.step(session.epoch(step), rate) as outcome:
            images, labels = await comm.compute(INPUT, partial(session.input, step, comm.rank, comm.size))
            x = images
            for stage in replica.stages:
                x = await comm.compute(f"forward {stage.name}", partial(stage.forward, x))
            loss, outcome.correct, gradient = await comm.compute(
                "loss", partial(replica.loss, x, labels, 1 / session.global_batch)
            )
            outcome.images = len(images)
            outcome.loss = loss / max(1, len(images))

            under_way: list[Task[Any]] = []
            end = replica.gradients.size
            dy: Any = gradient  # the first stage has none to hand on
            for stage in reversed(replica.stages):
                dy = await comm.compute(f"backward {stage.name}", partial(stage.backward, dy))
                complete = replica.gradients[stage.span.start : end]
                if complete.nbytes >= smallest:
                    under_way.append(comm.start(session.aggregate(comm, complete)))
                    end = stage.span.start
            await session.aggregate(comm, replica.gradients[:end])
            for bucket in under_way:
                await bucket

            await comm.compute(
                "update", partial(session.optimizer.update, replica.parameters, replica.gradients, rate)
            )
        if session.evaluation_due(step + 1) and await session.evaluate(comm, step + 1):
            return
