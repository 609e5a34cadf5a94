"""Forward and backward passes of a stage, in the order of a schedule."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.nn.accumulation import AccumulatingStage, Binding
    from hpcdl.training.parts.pipeline.neighbours import Neighbour
    from hpcdl.training.parts.pipeline.schedules import Pass
    from hpcdl.training.parts.session import Session


async def run_passes(
    comm: Comm,
    session: Session,
    order: Sequence[Pass],
    bindings: Sequence[Binding],
    labels: Sequence[Array],
    before: Neighbour,
    after: Neighbour,
    complete: Callable[[AccumulatingStage], None],
) -> float:
    """Compute the gradients of one step; return the summed loss of this stage's auxiliary classifiers.

    ``labels`` are those of each microbatch. A layer's gradient is complete after the last pass, which calls
    ``complete(layer)``. While a pass computes, the input of the next one arrives.
    """
    auxiliary = 0.0
    _expect(order[0], labels, before, after)
    for number, now in enumerate(order):
        source, sink = (before, after) if now.forward else (after, before)
        session.images = len(labels[now.microbatch])
        given = await source.received(now.microbatch)
        if number + 1 < len(order):
            _expect(order[number + 1], labels, before, after)
        binding = bindings[now.microbatch % len(bindings)]
        if now.forward:
            result = await _forward(comm, binding, given)
        else:
            if binding.heads:
                work = partial(binding.auxiliary_loss, labels[now.microbatch], 1 / session.global_batch)
                auxiliary += await comm.compute("loss", work)
            first = now == next(one for one in order if not one.forward)
            last = number == len(order) - 1
            result = await _backward(comm, binding, given, first, complete if last else _incomplete)
        await sink.send(now.microbatch, result)
    await before.finish()
    await after.finish()
    return auxiliary


def _expect(one: Pass, labels: Sequence[Array], before: Neighbour, after: Neighbour) -> None:
    (before if one.forward else after).expect(one.microbatch, len(labels[one.microbatch]))


async def _forward(comm: Comm, binding: Binding, x: Array) -> Array:
    for stage in binding.stages:
        x = await comm.compute(f"forward {stage.name}", partial(stage.forward, x))
    return x


async def _backward(
    comm: Comm, binding: Binding, dy: Array, first: bool, complete: Callable[[AccumulatingStage], None]
) -> Any:
    """Return the gradient of the stage's inputs; None for images."""
    gradient: Any = dy
    for stage in reversed(binding.stages):
        gradient = await comm.compute(f"backward {stage.name}", partial(stage.backward, gradient, first=first))
        complete(stage)
    return gradient


def _incomplete(_stage: AccumulatingStage) -> None:
    """Do nothing: later passes add to the gradient."""
