"""One gradient of one rank: input, forward, loss and backward, layer by layer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hpcdl.fabric.comm import INPUT
from hpcdl.training.parts.gradient_in_passes import gradient_in_passes

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
    Between layers, the session's flow moves activations and their gradients.
    """
    if session.group is not None and session.group.passes is not None:
        passes = session.group.passes
        await gradient_in_passes(comm, session, passes, inputs, outcome, scale=scale, before=before, after=after)
        return
    replica, flow = session.replica, session.flow
    x, labels = await comm.compute(INPUT, inputs)
    outcome.images = len(labels)
    shares = session.group_shares
    for boundary, stage in enumerate(replica.stages):
        if before is not None:
            await before(stage)
        x = await flow.forward(boundary, x, shares)
        x = await comm.compute(f"forward {stage.name}", partial(stage.forward, x))
    x = await flow.forward(len(replica.stages), x, shares)
    factor = 1 / max(1, outcome.images) if scale is None else scale
    loss, outcome.correct, dy = await comm.compute("loss", partial(replica.loss, x, labels, factor))
    outcome.loss = loss / max(1, outcome.images)
    upstream: Any = await flow.backward(len(replica.stages), dy, shares)
    for boundary, stage in reversed([*enumerate(replica.stages)]):
        upstream = await comm.compute(f"backward {stage.name}", partial(stage.backward, upstream))
        after(stage)
        if boundary:  # nothing is before the first stage
            upstream = await flow.backward(boundary, upstream, shares)
