"""One gradient of one rank: input, forward, loss and backward, layer by layer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hpcdl.fabric.comm import INPUT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.nn.stage import Stage
    from hpcdl.training.parts.journal import Outcome
    from hpcdl.training.parts.session import Session


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
    """Compute the replica's gradients of one batch, and its loss, correct answers and images in ``outcome``.

    ``inputs()`` returns images and labels. Each image's gradient is multiplied by ``scale``, by default 1 /
    images. ``before(stage)`` is awaited before a layer's forward, ``after(stage)`` is called after its backward.
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
    upstream: Any = dy  # None after the first stage
    for stage in reversed(replica.stages):
        upstream = await comm.compute(f"backward {stage.name}", partial(stage.backward, upstream))
        after(stage)
