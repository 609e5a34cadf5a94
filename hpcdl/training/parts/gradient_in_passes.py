"""One gradient of one rank, whose split layers work in passes."""

from __future__ import annotations

from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdl.fabric.comm import INPUT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.fabric.task import Task
    from hpcdl.nn.stage import Stage
    from hpcdl.training.parts.journal import Outcome
    from hpcdl.training.parts.passes import Passes
    from hpcdl.training.parts.session import Session


async def gradient_in_passes(
    comm: Comm,
    session: Session,
    passes: Passes,
    inputs: Callable[[], tuple[Array, Array]],
    outcome: Outcome,
    *,
    scale: float | None,
    before: Callable[[Stage], Awaitable[None]] | None,
    after: Callable[[Stage], None],
) -> None:
    """See :func:`hpcdl.training.parts.gradient.gradient`."""
    replica, first, rank, last = session.replica, passes.first, passes.group.rank, len(session.replica.stages)
    x, labels = await comm.compute(INPUT, inputs)
    outcome.images = len(labels)
    factor = 1 / max(1, outcome.images) if scale is None else scale
    for number, stage in enumerate(replica.stages):
        if before is not None:
            await before(stage)
        if number < first:
            x = await comm.compute(f"forward {stage.name}", partial(stage.forward, x))
    mine, upstream = x, np.empty_like(x)
    owns = [passes.own(session.group_shares, number) for number in range(passes.group.size)]
    parts = [tuple(pairwise(accumulate((high - low for low, high in own), initial=0))) for own in owns]

    def move(number: int) -> Task[Array]:
        images = mine[slice(*owns[number][rank])]
        return passes.group.start(passes.flows[number % 2].forward(first, images, parts[number]))

    async def give_back(number: int, dx: Array) -> None:
        returned = await passes.flows[number % 2].backward(first, dx, parts[number])
        upstream[slice(*owns[number][rank])] = returned

    loss, arriving = 0.0, move(0)
    returning: Task[None] | None = None
    last_pass = len(parts) - 1
    for number, images in enumerate(parts):
        flow, x = passes.flows[number % 2], await arriving
        if number < last_pass:
            arriving = move(number + 1)
        for boundary, one in enumerate(passes.stages, first):
            if boundary > first:
                x = await flow.forward(boundary, x, images)
            x = await comm.compute(f"forward {one.name}", partial(one.forward, x))
        x = await flow.forward(last, x, images)
        work = partial(replica.loss, x, labels[slice(*owns[number][rank])], factor)
        part_loss, correct, dy = await comm.compute("loss", work)
        loss, outcome.correct = loss + part_loss, outcome.correct + correct
        dx: Any = await flow.backward(last, dy, images)
        for boundary, one in reversed([*enumerate(passes.stages, first)]):
            if boundary == first and returning is not None:
                await returning  # this layer's next gradient takes the place of the one that is sent
            backward = partial(one.backward, dx, first=number == 0)
            dx = await comm.compute(f"backward {one.name}", backward)
            if number == last_pass:
                after(replica.stages[boundary])
            if boundary > first:
                dx = await flow.backward(boundary, dx, images)
        returning = passes.group.start(give_back(number, dx))
    outcome.loss = loss / max(1, outcome.images)
    if returning is not None:
        await returning
    dx = upstream
    for stage in reversed(replica.stages[:first]):
        dx = await comm.compute(f"backward {stage.name}", partial(stage.backward, dx))
        after(stage)
