"""Forward and backward passes through consecutive layers: of whole batches, of parts, and of microbatches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hpcdl.fabric.comm import Comm
    from hpcdl.nn.stage import Stage
    from hpcdl.training.parts.neighbours import Neighbour
    from hpcdl.training.parts.pipeline.schedules import Pass
    from hpcdl.training.parts.sections import Microbatch, Section
    from hpcdl.training.parts.session import Session


async def run_passes(
    comm: Comm,
    session: Session,
    section: Section,
    microbatches: Sequence[Microbatch],
    scale: float,
    source: Neighbour,
    sink: Neighbour,
    before: Callable[[Stage], Awaitable[None]] | None = None,
    after: Callable[[Stage], None] = lambda _stage: None,
) -> float:
    """Compute the gradients of a section; return the summed loss of its auxiliary classifiers.

    ``source`` gives each microbatch as the first layer takes it, ``sink`` the gradient of the outputs.
    Activations move at the boundaries between. Gradients of auxiliary classifiers are multiplied by ``scale``.
    ``before(stage)`` is awaited before a layer's first forward, ``after(stage)`` is called after its last
    backward, with the stage of the replica. While a pass computes, the input of the next one arrives.
    """
    begin, bindings, flows, order = section
    auxiliary = 0.0
    first_backward = next(one for one in order if not one.forward)

    def expect(one: Pass) -> None:
        (source if one.forward else sink).expect(one.microbatch, len(microbatches[one.microbatch].labels))

    expect(order[0])
    for number, now in enumerate(order):
        given, taken = (source, sink) if now.forward else (sink, source)
        labels, shares = microbatches[now.microbatch]
        session.images = len(labels)
        x: Any = await given.received(now.microbatch)
        if number + 1 < len(order):
            expect(order[number + 1])
        stages, flow = bindings[now.microbatch % len(bindings)], flows[now.microbatch % len(flows)]
        heads = [] if now.forward else [head for stage in stages for head in stage.heads]
        for head in heads:
            head.aim(labels, scale * session.replica.loss_scale)
        path = [*enumerate(stages, begin)]
        for boundary, stage in path if now.forward else reversed(path):
            if stage is (stages[-1] if now.forward else stages[0]):
                await taken.sent(now.microbatch - len(bindings))  # its array is overwritten
            if now.forward:
                if before is not None and number == 0:
                    await before(session.replica.stages[boundary])
                if boundary > begin:
                    x = await flow.forward(boundary, x, shares)
                x = await comm.compute(f"forward {stage.name}", partial(stage.forward, x))
            else:
                work = partial(stage.backward, x, first=now == first_backward)
                x = await comm.compute(f"backward {stage.name}", work)
                if number == len(order) - 1:
                    after(session.replica.stages[boundary])
                if boundary > begin:
                    x = await flow.backward(boundary, x, shares)
        auxiliary += sum(head.value for head in heads)
        await taken.send(now.microbatch, x)
    await source.finish()
    await sink.finish()
    return auxiliary
