"""Both ends of a section of layers: the images or a stage before, and the loss or a stage after.

All have the same interface, so that one program runs every section (:mod:`hpcdl.training.parts.gradient`).
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import Task
from hpcdl.nn.geometry import Shape
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
    """End of a section of layers, as the section sees it; here one that exchanges no messages."""

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

    async def finish(self) -> None:
        """Wait until all sends are complete."""


class Stage(Neighbour):
    """The rank with the stage before or after; transfers overlap with computing.

    ``tags``: first tags of what is sent to ``peer`` and received from it. ``buffers`` are vectors for arrays of
    images of ``shape``.
    """

    def __init__(
        self, pipe: Comm, peer: int, tags: tuple[int, int], buffers: Sequence[Array], shape: Shape
    ) -> None:
        self._pipe = pipe
        self._peer = peer
        self._outgoing, self._incoming = tags
        self._buffers = buffers
        self._shape = shape
        self._sent: dict[int, Task[None]] = {}
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

    async def sent(self, microbatch: int) -> None:
        if (earlier := self._sent.pop(microbatch, None)) is not None:
            await earlier

    async def send(self, microbatch: int, array: Array) -> None:
        work = self._pipe.send(array.reshape(-1), self._peer, self._outgoing + microbatch % NUMBERS)
        self._sent[microbatch] = self._pipe.start(work, shared_tags=True)

    async def finish(self) -> None:
        for microbatch in [*self._sent]:
            await self.sent(microbatch)


def stage_before(pipe: Comm, replica: Replica, images: int, in_flight: int) -> Stage:
    """Return the stage before this rank's, for microbatches of at most ``images``.

    Activations are kept until the backward of their microbatch; one more buffer receives the next ones.
    """
    buffers = replica.buffers(images, in_flight + 1, inputs=True)
    return Stage(pipe, pipe.rank - 1, (BACKWARD, FORWARD), buffers, replica.shape)


def stage_after(pipe: Comm, replica: Replica, images: int, in_flight: int) -> Stage:
    """Return the stage after this rank's; see :func:`stage_before`.

    A layer may return a view of the gradient that it was given, such as Flatten. So a gradient is kept until its
    microbatch is complete on the stage before, too.
    """
    buffers = replica.buffers(images, in_flight + 1, inputs=False)
    return Stage(pipe, pipe.rank + 1, (FORWARD, BACKWARD), buffers, replica.output)


class Images(Neighbour):
    """The images of a batch, or other inputs of a section; ``gradient`` is that of the last microbatch."""

    def __init__(self, microbatches: Sequence[Array]) -> None:
        self.gradient: Any = None
        self._microbatches = microbatches

    async def received(self, microbatch: int) -> Array:
        return self._microbatches[microbatch]

    async def send(self, microbatch: int, array: Any) -> None:  # noqa: ARG002
        self.gradient = array


class Loss(Neighbour):
    """The loss, after the last layer; results are added to ``outcome``, the losses as a sum over images.

    Layers before it may be divided: logits and their gradients move by the section's ``flows``.
    """

    def __init__(
        self,
        comm: Comm,
        replica: Replica,
        microbatches: Sequence[Microbatch],
        flows: Sequence[Flow],
        scale: float,
        outcome: Outcome,
    ) -> None:
        self._comm = comm
        self._replica = replica
        self._microbatches = microbatches
        self._flows = flows
        self._scale = scale
        self._outcome = outcome
        outcome.loss = 0.0
        self._outputs: dict[int, Array] = {}

    async def received(self, microbatch: int) -> Array:
        labels, shares = self._microbatches[microbatch]
        flow, boundary = self._flows[microbatch % len(self._flows)], len(self._replica.stages)
        logits = await flow.forward(boundary, self._outputs.pop(microbatch), shares)
        work = partial(self._replica.loss, logits, labels, self._scale)
        loss, correct, gradient = await self._comm.compute("loss", work)
        self._outcome.loss += loss
        self._outcome.correct += correct
        self._outcome.images += len(labels)
        return await flow.backward(boundary, gradient, shares)

    async def send(self, microbatch: int, array: Any) -> None:
        self._outputs[microbatch] = array
