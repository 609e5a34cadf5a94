"""Both ends of a section of layers, of one interface: images or a stage before, and the loss or a stage after."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import Task
from hpcdl.nn.replica import Replica
from hpcdl.training.parts.journal import Outcome
from hpcdl.training.parts.split.flow import Flow
from hpcdl.training.parts.split.schedules import Microbatch

NUMBERS: Final = 127
"""Tags of each direction; microbatches take them in turn."""
FORWARD: Final = 0
"""First tag of activations."""
BACKWARD: Final = NUMBERS
"""First tag of gradients."""
LOSS: Final = 2 * NUMBERS
"""Tag of losses of auxiliary classifiers."""


class Neighbour:
    """End of a section of layers, as the section sees it; its sends are under way until they are waited for."""

    def __init__(self) -> None:
        self._sends: dict[int, Task[None]] = {}

    def expect(self, microbatch: int, images: int) -> None:
        """Begin to receive the array of a microbatch."""

    async def received(self, microbatch: int) -> Array:
        """Return the expected array of a microbatch, valid for as many microbatches as there are buffers."""
        raise NotImplementedError

    async def send(self, microbatch: int, array: Any) -> None:
        """Begin to send an array, which must not change until it is :meth:`sent`."""
        raise NotImplementedError

    async def sent(self, microbatch: int) -> None:
        """Wait until the array of a microbatch, if there is one, is sent."""
        if (earlier := self._sends.pop(microbatch, None)) is not None:
            await earlier

    async def finish(self) -> None:
        """Wait until all sends are complete."""
        for microbatch in [*self._sends]:
            await self.sent(microbatch)


class Stage(Neighbour):
    """The rank with the stage ``before`` or after, for microbatches of at most ``images``.

    Transfers overlap with computing. Activations are kept until the backward of their microbatch, and gradients
    until it is complete on the stage before too: a layer may return a view of what it was given. One more buffer
    than microbatches ``in_flight`` receives the next ones.
    """

    def __init__(self, pipe: Comm, replica: Replica, images: int, in_flight: int, *, before: bool) -> None:
        super().__init__()
        self._pipe = pipe
        self._peer = pipe.rank - 1 if before else pipe.rank + 1
        self._outgoing, self._incoming = (BACKWARD, FORWARD) if before else (FORWARD, BACKWARD)
        first, last = replica.stages[0], replica.stages[-1]
        self._shape, dtype = (first.shape, first.input_dtype) if before else (last.output, last.output_dtype)
        size = images * math.prod(self._shape)
        self._buffers = [replica.backend.zeros(size, dtype) for _ in range(in_flight + 1)]
        self._expected: dict[int, tuple[Task[Any], Array]] = {}
        self._turn = 0

    def expect(self, microbatch: int, images: int) -> None:
        buffer = self._buffers[self._turn % len(self._buffers)]
        self._turn += 1
        vector = buffer[: images * math.prod(self._shape)]
        work = self._pipe.recv(vector, self._peer, self._incoming + microbatch % NUMBERS)
        task = self._pipe.start(work, shared_tags=True)
        self._expected[microbatch] = task, vector.reshape(images, *self._shape)

    async def received(self, microbatch: int) -> Array:
        task, array = self._expected.pop(microbatch)
        await task
        return array

    async def send(self, microbatch: int, array: Array) -> None:
        work = self._pipe.send(array.reshape(-1), self._peer, self._outgoing + microbatch % NUMBERS)
        self._sends[microbatch] = self._pipe.start(work, shared_tags=True)


class Images(Neighbour):
    """The images of a batch, or other inputs of a section; ``gradient`` is that of the last microbatch."""

    def __init__(self, microbatches: Sequence[Array]) -> None:
        super().__init__()
        self.gradient: Any = None
        self._microbatches = microbatches

    async def received(self, microbatch: int) -> Array:
        return self._microbatches[microbatch]

    async def send(self, microbatch: int, array: Any) -> None:  # noqa: ARG002
        self.gradient = array


@dataclass(eq=False)
class Loss(Neighbour):
    """The loss, after the last layer; results are added to ``outcome``, the losses as a sum over images.

    Layers before it may be divided: logits and their gradients move by the section's ``flows``.
    """

    comm: Comm
    replica: Replica
    microbatches: Sequence[Microbatch]
    flows: Sequence[Flow]
    scale: float
    outcome: Outcome

    def __post_init__(self) -> None:
        super().__init__()
        self.outcome.loss = 0.0
        self._outputs: dict[int, Array] = {}

    async def received(self, microbatch: int) -> Array:
        labels, shares = self.microbatches[microbatch]
        flow, boundary = self.flows[microbatch % len(self.flows)], len(self.replica.stages)
        logits = await flow.forward(boundary, self._outputs.pop(microbatch), shares)
        work = partial(self.replica.loss, logits, labels, self.scale)
        loss, correct, gradient = await self.comm.compute("loss", work)
        self.outcome.loss += loss
        self.outcome.correct += correct
        self.outcome.images += len(labels)
        return await flow.backward(boundary, gradient, shares)

    async def send(self, microbatch: int, array: Any) -> None:
        self._outputs[microbatch] = array
