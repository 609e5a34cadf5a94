"""Client of a worker of asynchronous training: exchanges with all servers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from hpcdl.fabric.comm import Array, PeerLost
from hpcdl.fabric.task import Task
from hpcdl.fabric.vectors import assign
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.journal import Outcome
from hpcdl.training.parts.servers import messages
from hpcdl.training.parts.servers.messages import Answer, Request, ServedRank
from hpcdl.training.parts.split.model_group import follow


class Client:
    """Exchanges of a worker with all servers of its parameters, one at a time, concurrently with its gradients.

    The ranks of a model group exchange their parts of the parameters at the same steps, and continue with the
    mini-batches granted to the first one.

    Memory, in vectors as long as the parameters: 2 for the accrued and the sent gradients; with ``overlap`` 1 for
    parameters that arrive while the old ones are in use.
    """

    def __init__(self, rank: ServedRank, *, overlap: bool = False) -> None:
        self.comm = rank.comm
        self.session = session = rank.session
        self.workers = rank.layout.workers
        self.clock = rank.rules.warm_start if rank.ranks.rank else 0
        """Mini-batches finished; for workers other than 0 it starts at the length of the warm start."""
        self.left = 0
        """Mini-batches granted and not finished."""
        self._rank = rank
        self._comm = rank.ranks
        self._layout = rank.layout
        self._applied = 0
        """Parts of global batches that were applied to the parameters when the server sent them."""
        self._parameters = session.replica.parameters
        self._incoming = session.vector("incoming") if overlap else self._parameters
        self._accrued = session.vector("accrued")
        self._outgoing = session.vector("outgoing")
        self._batches = 0
        self._versions = [0] * rank.layout.servers
        self._oldest = self._versions
        """Versions of the parameters of the first gradient in ``_accrued``."""
        self._under_way: list[Task[Answer | None]] = []

    async def exchange_each_gradient(self, replace: Callable[[float], None] | None = None) -> None:
        """Train until no mini-batch is granted: fetch, compute a gradient, push it.

        ``replace(rate)``, if given, replaces the gradients by what is pushed.
        """
        await self.fetch_first(1)
        while self.left:
            with self.mini_batch() as (outcome, rate):
                await self.compute_gradient(outcome)
                if replace is not None:
                    await self.comm.compute("update", partial(replace, rate))
                await self.accrue()
                self.begin(push=True, wanted=1)
                await self.finish()
        await self.leave()

    async def fetch_first(self, wanted: int) -> None:
        self.begin(push=False, wanted=wanted)
        await self.finish()

    @contextmanager
    def mini_batch(self) -> Iterator[tuple[Outcome, float]]:
        """Record a step: its outcome, and the rate of the global batches that were applied at the last fetch."""
        session, applied = self.session, self._applied // self._rank.parts
        self._rank.snapshots.note_progress(applied)
        rate = session.learning_rate(min(applied, session.steps - 1))
        with session.journal.step(session.inputs.epoch(self.clock), rate) as outcome:
            yield outcome, rate

    async def compute_gradient(self, outcome: Outcome) -> None:
        """Compute the gradient of the worker's next mini-batch, its part of the mean over a global batch."""
        session = self.session
        inputs = partial(session.inputs.load, self.clock, self._comm.rank, self.workers)
        await gradient(self.comm, session, inputs, outcome, scale=1 / session.global_batch)

    async def accrue(self) -> None:
        """Add the replica's gradients, of one mini-batch, to the sum of the next push."""
        gradients = self.session.replica.gradients
        if self._batches:
            await self._comm.add(self._accrued, gradients)
        else:
            copy = partial(assign, self._accrued, gradients)
            await self._comm.apply("copy", copy, gradients.nbytes)
            self._oldest = self._versions
        self._batches += 1
        self.clock += 1
        self.left -= 1

    def begin(self, *, push: bool, wanted: int) -> None:
        """Start to push the accrued gradients, to fetch parameters and ``wanted`` mini-batches, or both.

        The previous exchange must be finished.
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
                self._exchange(
                    self._layout.first + number,
                    Request(batches, version, self.clock, self.left, wanted),
                    gradient,
                    parameters,
                ),
                shared_tags=True,
            )
            for number, (version, gradient, parameters) in enumerate(shards)
        ]

    async def finish(self) -> None:
        """Wait for the exchange under way; fetched parameters replace those in use."""
        answers = [answer for task in self._under_way if (answer := await task) is not None]
        self._under_way = []
        if not answers:
            return
        if self._incoming is not self._parameters:
            copy = partial(assign, self._parameters, self._incoming)
            await self._comm.apply("copy", copy, self._parameters.nbytes)
        self._versions = [answer.version for answer in answers]
        decision = np.array([answers[0].granted, answers[0].applied])
        await follow(self.session.group, decision)
        granted, self._applied = (int(number) for number in decision)
        self.left += granted

    async def leave(self) -> None:
        self.begin(push=self._batches > 0, wanted=messages.LEAVE)
        await self.finish()

    async def _exchange(self, server: int, request: Request, gradient: Array, parameters: Array) -> Answer | None:
        try:
            await self._comm.send(np.array(request), server, messages.REQUEST)
            if request.batches:
                await self._rank.transfers.push(server, gradient)
            if request.wanted <= 0:
                return None
            header = messages.buffer(Answer)
            await self._comm.recv(header, server, messages.ANSWER)
            await self._rank.transfers.fetch(server, parameters)
        except PeerLost as lost:
            raise PeerLost(lost.rank, messages.LOST_SHARD) from None
        return Answer(*header.tolist())
