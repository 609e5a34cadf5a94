"""One gradient of one rank: input, forward, loss and backward, layer by layer."""

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hpcdl.fabric.comm import INPUT, Array, Comm
from hpcdl.fabric.task import Task
from hpcdl.fabric.vectors import empty
from hpcdl.nn.replica import Stage
from hpcdl.nn.split.part import Range
from hpcdl.training.parts.journal import Outcome
from hpcdl.training.parts.sections import WHOLE, Images, Loss, Microbatch, Neighbour, Passes, Section, gpipe
from hpcdl.training.parts.session import Session


async def _nothing(_stage: Stage) -> None:
    pass


async def run_passes(
    comm: Comm,
    session: Session,
    section: Section,
    scale: float,
    source: Neighbour,
    sink: Neighbour,
    before: Callable[[Stage], Awaitable[None]] = _nothing,
    after: Callable[[Stage], None] = lambda _stage: None,
    again: Callable[[Stage], Awaitable[None]] = _nothing,
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

    def expect(forward: bool, microbatch: int) -> None:
        (source if forward else sink).expect(microbatch, len(microbatches[microbatch].labels))

    expect(*order[0])
    for number, now in enumerate(order):
        given, taken = (source, sink) if now.forward else (sink, source)
        labels, shares = microbatches[now.microbatch]
        session.inputs.images = len(labels)
        x: Any = await given.received(now.microbatch)
        if number + 1 < len(order):
            expect(*order[number + 1])
        stages, flow = bindings[now.microbatch % len(bindings)], flows[now.microbatch % len(flows)]
        heads = [] if now.forward else [head for stage in stages for head in stage.heads]
        for head in heads:
            head.aim(labels, scale * session.replica.loss_scale)
        for boundary, stage in [*enumerate(stages, begin)][:: 1 if now.forward else -1]:
            if stage is (stages[-1] if now.forward else stages[0]):
                await taken.sent(now.microbatch - len(bindings))  # its array is overwritten
            own = session.replica.stages[boundary]
            if now.forward:
                if number == 0:
                    await before(own)
                if boundary > begin:
                    x = await flow.forward(boundary, x, shares)
                x = await comm.compute(f"forward {stage.name}", partial(stage.forward, x))
            else:
                await again(own)
                work = partial(stage.backward, x, first=now == first_backward)
                x = await comm.compute(f"backward {stage.name}", work)
                if number == len(order) - 1:
                    after(own)
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
    before: Callable[[Stage], Awaitable[None]] = _nothing,
    after: Callable[[Stage], None] = lambda _stage: None,
    again: Callable[[Stage], Awaitable[None]] = _nothing,
) -> None:
    """Compute the replica's gradients of one batch, and its loss, correct answers and images in ``outcome``.

    ``inputs()`` returns images and labels. Each image's gradient is multiplied by ``scale``, by default 1 /
    images. ``before``, ``after`` and ``again`` are those of :func:`run_passes`. Split layers may work in passes
    (:mod:`hpcdl.training.parts.sections`).
    """
    group, stages = session.group, session.replica.stages
    x, labels = await comm.compute(INPUT, inputs)
    factor = 1 / max(1, len(labels)) if scale is None else scale
    shares, flow = session.inputs.group_shares, WHOLE if group is None else group.flow
    batch, last = Microbatch(labels, shares), len(stages)
    run = partial(run_passes, comm, session, scale=factor, before=before, after=after, again=again)
    loss = partial(Loss, comm, session.replica, scale=factor, outcome=outcome)
    auxiliary = 0.0

    async def compute(section: Section, source: Images | Moving, sink: Neighbour) -> Array:
        """Return the gradient of a section's inputs."""
        nonlocal auxiliary
        losses = await run(section, source=source, sink=sink)
        auxiliary += losses  # the sink has run later sections meanwhile
        gradient: Array = source.gradient
        return gradient

    async def whole(begin: int, end: int, x: Array, sink: Neighbour) -> Array:
        """Return the gradient of ``x``, the inputs of the layers from ``begin`` on, which take the whole batch."""
        section = Section(begin, [stages[begin:end]], [flow], gpipe(0, 1, 1), [batch])
        return await compute(section, Images([x]), sink)

    async def in_passes(passes: Passes) -> None:
        """Compute all gradients; layers before and after the split ones take the whole batch."""
        parts = passes.microbatches(shares, labels)
        section = passes.section._replace(microbatches=parts)

        async def normalised(x: Array) -> Array:
            x = await flow.forward(passes.end, x, shares)
            dx = await whole(passes.end, last, x, loss([batch], [flow]))
            return await flow.backward(passes.end, dx, shares)

        async def split(x: Array) -> Array:
            ends = passes.end == last
            sink = loss(parts, section.flows) if ends else Later(comm, normalised, passes.rows(shares))
            return await compute(section, Moving(passes, x, shares, parts), sink)

        await whole(0, passes.begin, x, Later(comm, split))

    if group is None or group.passes is None:
        await whole(0, last, x, loss([batch], [flow]))
    else:
        await in_passes(group.passes)
    outcome.loss = (outcome.loss + auxiliary) / max(1, outcome.images)


class Moving(Neighbour):
    """Source of the passes: this rank's images ``x``. The next part moves while the layers work on one."""

    def __init__(
        self, passes: Passes, x: Array, shares: Sequence[Range], microbatches: Sequence[Microbatch]
    ) -> None:
        super().__init__()
        self.gradient = np.empty_like(x)
        """Gradient of ``x``, complete after :meth:`finish`."""
        self._passes = passes
        self._x = x
        self._own = [slice(*own[passes.group.rank]) for own in passes.own(shares)]
        self._shares = [microbatch.shares for microbatch in microbatches]
        self._arriving: dict[int, Task[Array]] = {}

    def expect(self, microbatch: int, images: int) -> None:  # noqa: ARG002
        if microbatch not in self._arriving and microbatch < len(self._own):
            begin, flows = self._passes.begin, self._passes.section.flows
            work = flows[microbatch % len(flows)].forward(
                begin, self._x[self._own[microbatch]], self._shares[microbatch]
            )
            self._arriving[microbatch] = self._passes.group.start(work)

    async def received(self, microbatch: int) -> Array:
        arrived = await self._arriving[microbatch]
        self.expect(microbatch + 1, 0)
        return arrived

    async def send(self, microbatch: int, array: Any) -> None:
        self._sends[microbatch] = self._passes.group.start(self._give_back(microbatch, array))

    async def _give_back(self, microbatch: int, dx: Array) -> None:
        flows = self._passes.section.flows
        flow, shares = flows[microbatch % len(flows)], self._shares[microbatch]
        self.gradient[self._own[microbatch]] = await flow.backward(self._passes.begin, dx, shares)


class Later(Neighbour):
    """Sink of a section whose outputs a later section takes as a whole batch.

    ``run(x)`` computes the later section and returns the gradient of ``x``. ``rows`` are the places of each
    microbatch's images in ``x``; None: there is one microbatch.
    """

    def __init__(
        self, comm: Comm, run: Callable[[Array], Awaitable[Array]], rows: Sequence[Sequence[slice]] | None = None
    ) -> None:
        super().__init__()
        self._comm = comm
        self._run = run
        self._rows = rows
        self._outputs: dict[int, Array] = {}
        self._gradient: Array | None = None

    async def send(self, microbatch: int, array: Any) -> None:
        self._outputs[microbatch] = array

    async def received(self, microbatch: int) -> Array:
        """See :class:`hpcdl.training.parts.sections.Neighbour`; all outputs are there."""
        if self._rows is None:
            return await self._run(self._outputs[microbatch])
        if self._gradient is None:
            whole = _batch(self._outputs[0], sum(map(len, self._outputs.values())))
            for number, part in self._outputs.items():
                copy = partial(_copy, whole, self._rows[number], part, back=False)
                await self._comm.apply("copy", copy, part.nbytes)
            self._gradient = await self._run(whole)
        own = _batch(self._gradient, len(self._outputs[microbatch]))
        copy = partial(_copy, self._gradient, self._rows[microbatch], own, back=True)
        await self._comm.apply("copy", copy, own.nbytes)
        return own


def _batch(like: Array, images: int) -> Array:
    shape = like.shape[1:]
    return empty(images * math.prod(shape), like).reshape(images, *shape)


def _copy(whole: Array, rows: Sequence[slice], part: Array, *, back: bool) -> None:
    """Write the images of ``part`` into ``rows`` of ``whole``; ``back``: those of ``whole`` into ``part``."""
    begin = 0
    for place in rows:
        own = slice(begin, begin := begin + place.stop - place.start)
        if back:
            part[own] = whole[place]
        else:
            whole[place] = part[own]
