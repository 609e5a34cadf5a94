"""One gradient of one rank: input, forward, loss and backward, layer by layer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hpcdl.fabric.comm import INPUT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.nn.replica import Stage
    from hpcdl.training.journal import Outcome
    from hpcdl.training.session import Session


async def gradient(
    comm: Comm,
    session: Session,
    inputs: Callable[[], tuple[Array, Array]],
    outcome: Outcome,
    *,
    scale: float | None = None,
    before: Callable[[Stage], Awaitable[None]] | None = None,
    after: Callable[[Stage], None] = lambda _stage: None,
) -> None:
    """Fill the replica's gradients from one batch, and ``outcome`` with what the batch came to.

    ``inputs`` gives images and labels; each image's gradient is multiplied by ``scale``, or by 1 / images where
    that is None. Before a layer's forward ``before`` is awaited, after its backward ``after`` is told.
    """
    replica = session.replica
    x, labels = await comm.compute(INPUT, inputs)
    outcome.images = len(x)
    for stage in replica.stages:
        if before is not None:
            await before(stage)
        x = await comm.compute(f"forward {stage.name}", partial(stage.forward, x))
    factor = 1 / max(1, outcome.images) if scale is None else scale
    loss, outcome.correct, dy = await comm.compute("loss", partial(replica.loss, x, labels, factor))
    outcome.loss = loss / max(1, outcome.images)
    flowing: Any = dy  # the first stage has none to hand on
    for stage in reversed(replica.stages):
        flowing = await comm.compute(f"backward {stage.name}", partial(stage.backward, flowing))
        after(stage)
