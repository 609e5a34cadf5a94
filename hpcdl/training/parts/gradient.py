"""One gradient of one rank: input, forward, loss and backward, layer by layer."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from hpcdl.fabric.comm import INPUT, Array, Comm
from hpcdl.nn.replica import Stage
from hpcdl.training.parts.journal import Outcome
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.split.flow import WHOLE, Flow
from hpcdl.training.parts.split.neighbours import Images, Loss, Neighbour
from hpcdl.training.parts.split.passes import Later, Moving
from hpcdl.training.parts.split.schedules import Microbatch, Pass, Section, gpipe


async def run_passes(
    comm: Comm,
    session: Session,
    section: Section,
    scale: float,
    source: Neighbour,
    sink: Neighbour,
    before: Callable[[Stage], Awaitable[None]] | None = None,
    after: Callable[[Stage], None] = lambda _stage: None,
    again: Callable[[Stage], Awaitable[None]] | None = None,
) -> float:
    """Compute the gradients of a section; return the summed loss of its auxiliary classifiers.

    ``source`` gives each microbatch as the first layer takes it, ``sink`` the gradient of the outputs. Gradients
    of auxiliary classifiers are multiplied by ``scale``. With the stage of the replica, ``before(stage)`` is
    awaited before a layer's first forward, ``again(stage)`` before each backward, and ``after(stage)`` is called
    after its last backward. While a pass computes, the input of the next one arrives.
    """
    begin, bindings, flows, order, microbatches = section
    auxiliary = 0.0
    first_backward = next(step for step in order if not step.forward)

    def expect(step: Pass) -> None:
        (source if step.forward else sink).expect(step.microbatch, len(microbatches[step.microbatch].labels))

    expect(order[0])
    for number, now in enumerate(order):
        given, taken = (source, sink) if now.forward else (sink, source)
        labels, shares = microbatches[now.microbatch]
        session.inputs.images = len(labels)
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
                if again is not None:
                    await again(session.replica.stages[boundary])
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


async def gradient(
    comm: Comm,
    session: Session,
    inputs: Callable[[], tuple[Array, Array]],
    outcome: Outcome,
    *,
    scale: float | None = None,
    before: Callable[[Stage], Awaitable[None]] | None = None,
    after: Callable[[Stage], None] = lambda _stage: None,
    again: Callable[[Stage], Awaitable[None]] | None = None,
) -> None:
    """Compute the replica's gradients of one batch, and its loss, correct answers and images in ``outcome``.

    ``inputs()`` returns images and labels. Each image's gradient is multiplied by ``scale``, by default 1 /
    images. ``before``, ``after`` and ``again`` are those of :func:`run_passes`. Split layers may work in passes
    (:mod:`hpcdl.training.parts.split.passes`).
    """
    stages, group = session.replica.stages, session.group
    flow = WHOLE if group is None else group.flow
    passes = None if group is None else group.passes
    x, labels = await comm.compute(INPUT, inputs)
    shares, last, auxiliary = session.inputs.group_shares, len(stages), 0.0
    batch = [Microbatch(labels, shares)]
    factor = 1 / max(1, len(labels)) if scale is None else scale

    async def run(section: Section, source: Neighbour, sink: Neighbour) -> None:
        nonlocal auxiliary
        own = await run_passes(comm, session, section, factor, source, sink, before, after, again)
        auxiliary += own  # the sink has run later sections meanwhile

    def loss(batches: Sequence[Microbatch], flows: Sequence[Flow]) -> Loss:
        return Loss(comm, session.replica, batches, flows, factor, outcome)

    async def whole(begin: int, end: int, x: Array, sink: Neighbour) -> Array:
        """Return the gradient of ``x``, the inputs of the layers from ``begin`` on, which take the whole batch."""
        source = Images([x])
        await run(Section(begin, [stages[begin:end]], [flow], gpipe(0, 1, 1), batch), source, sink)
        gradient: Array = source.gradient
        return gradient

    if passes is None:
        await whole(0, last, x, loss(batch, [flow]))
    else:
        parts = passes.microbatches(shares, labels)
        section = passes.section._replace(microbatches=parts)

        async def normalised(x: Array) -> Array:
            x = await flow.forward(passes.end, x, shares)
            dx = await whole(passes.end, last, x, loss(batch, [flow]))
            return await flow.backward(passes.end, dx, shares)

        async def split(x: Array) -> Array:
            source = Moving(passes, x, shares, parts)
            sink = (
                loss(parts, section.flows) if passes.end == last else Later(comm, normalised, passes.rows(shares))
            )
            await run(section, source, sink)
            return source.gradient

        await whole(0, passes.begin, x, Later(comm, split))
    outcome.loss = (outcome.loss + auxiliary) / max(1, outcome.images)
