"""The servers of asynchronous training as one worker deals with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.fabric.comm import PeerLost
from hpcdl.training.servers.messages import (
    ANSWER,
    GRADIENT,
    LEAVE,
    PARAMETERS,
    REQUEST,
    Answer,
    Request,
)

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.fabric.task import Task
    from hpcdl.training.servers.messages import Layout
    from hpcdl.training.session import Session


class Servers:
    """Gradients to all servers, parameters from all of them, one exchange at a time, beside the worker's work.

    Memory, in vectors as long as the parameters: 2 for the gradients that accrue and those under way, so that what
    is being sent stays as it is; with ``overlap`` 1 for parameters that arrive while the old ones are in use.
    """

    def __init__(self, comm: Comm, session: Session, layout: Layout, clock: int, *, overlap: bool) -> None:
        self.clock = clock
        """Mini-batches finished, those of others' warm start included."""
        self.left = 0
        """Mini-batches granted and not finished."""
        self.applied = 0
        """Parts of global batches that the parameters had seen when they were sent."""
        self._comm = comm
        self._layout = layout
        self._parameters = session.replica.parameters
        self._incoming = session.vector("incoming") if overlap else self._parameters
        self._accrued = session.vector("accrued")
        self._outgoing = session.vector("outgoing")
        self._batches = 0
        self._versions = [0] * layout.servers
        self._oldest = self._versions
        """Versions of the parameters that the first gradient in ``_accrued`` was computed from."""
        self._under_way: list[Task[Answer | None]] = []

    async def accrue(self, gradients: Array) -> None:
        """Add the gradients of one more mini-batch to those that are to be pushed."""
        if self._batches:
            await self._comm.add(self._accrued, gradients)
        else:
            self._accrued[:] = gradients
            self._oldest = self._versions
        self._batches += 1
        self.clock += 1
        self.left -= 1

    def begin(self, *, push: bool, wanted: int) -> None:
        """Push what has accrued, or fetch parameters and be granted ``wanted`` mini-batches, or both.

        What was begun before must have been settled.
        """
        batches = 0
        if push:
            self._accrued, self._outgoing = self._outgoing, self._accrued
            batches, self._batches = self._batches, 0
        shards = zip(
            self._oldest, self._layout.shards(self._outgoing), self._layout.shards(self._incoming), strict=True
        )
        self._under_way = [
            self._comm.start(
                self._talk(
                    self._layout.first + number,
                    Request(batches, version, self.clock, self.left, wanted),
                    gradient,
                    parameters,
                ),
                shared_tags=True,
            )
            for number, (version, gradient, parameters) in enumerate(shards)
        ]

    async def settle(self) -> None:
        """Wait for what has been begun; parameters that were fetched replace those in use."""
        answers = [answer for task in self._under_way if (answer := await task) is not None]
        self._under_way = []
        if not answers:
            return
        if self._incoming is not self._parameters:
            self._parameters[:] = self._incoming
        self._versions = [answer.version for answer in answers]
        self.applied = answers[0].applied
        self.left += answers[0].granted

    async def leave(self) -> None:
        """Push what is left and take leave."""
        self.begin(push=self._batches > 0, wanted=LEAVE)
        await self.settle()

    async def _talk(self, server: int, request: Request, gradient: Array, parameters: Array) -> Answer | None:
        try:
            await self._comm.send(np.array(request), server, REQUEST)
            if request.batches:
                await self._comm.send(gradient, server, GRADIENT)
            if request.wanted <= 0:
                return None
            header = Answer.room()
            await self._comm.recv(header, server, ANSWER)
            await self._comm.recv(parameters, server, PARAMETERS)
        except PeerLost as lost:
            raise PeerLost(lost.rank, "it kept a part of the parameters") from None
        return Answer(*header.tolist())
