"""A server of asynchronous training: it keeps one shard of the parameters and says who may go on."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hpcdl.fabric.comm import ANY, PeerLost, partition
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
    from hpcdl.training.servers.delay_compensation import DelayCompensation
    from hpcdl.training.servers.messages import Layout
    from hpcdl.training.session import Session
    from hpcdl.training.snapshots import Snapshots


_FIRST: Final = 0
"""The worker that has the warm start."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a server goes by."""

    weights: tuple[int, ...]
    """Parts of a global batch that each worker's mini-batch is: 1 where shares are equal."""
    collect: int
    """Gradients of an update; once fewer workers are left, as many as those."""
    bound: int | None
    """Clocks that a worker may be ahead of the slowest one, None: any number."""
    scale_rate: bool
    """Whether a gradient's rate is divided by its staleness."""
    warm_start: int
    """Mini-batches that the first worker trains on before the others begin."""

    @property
    def parts(self) -> int:
        """What the weights of a global batch come to."""
        return sum(self.weights)


class _Gradient(NamedTuple):
    worker: int
    parts: int
    staleness: int
    scale: float
    vector: Array


@dataclass
class _Worker:
    """What a server knows of a worker that is running, in mini-batches; those of others' warm start count."""

    granted: int
    finished: int
    pushed: int


class Server:
    """One shard, its optimizer (the rank's own), and the workers that have not left.

    Memory, in shards: 1 for the parameters, ``collect`` for gradients that wait for an update, what the optimizer
    keeps, and with delay compensation one for each worker (one more if it is adaptive).
    """

    def __init__(
        self,
        comm: Comm,
        session: Session,
        layout: Layout,
        rules: Rules,
        snapshots: Snapshots,
        compensation: DelayCompensation | None,
    ) -> None:
        self._comm = comm
        self._session = session
        self._layout = layout
        self._rules = rules
        self._snapshots = snapshots
        self._compensation = compensation
        initial = session.replica.parameters
        self._start = layout.start(initial, comm.rank)
        mine = layout.shards(initial)[comm.rank - layout.first]
        self._shard = session.vector("shard", mine.size)
        self._shard[:] = mine
        self._inboxes = partition(session.vector("collected", rules.collect * mine.size), rules.collect)
        self._collected: list[_Gradient] = []
        self._version = 0
        self._applied = 0
        self._measured = -1
        # the first server hands out the mini-batches, lest two of them disagree
        self._budget = session.steps * rules.parts if comm.rank == layout.first else sys.maxsize
        begun = [0, *[rules.warm_start] * (layout.workers - 1)]
        self._running = {worker: _Worker(clock, clock, clock) for worker, clock in enumerate(begun)}
        self._held: list[tuple[int, Request]] = []

    async def serve(self) -> None:
        """Answer requests until every worker has left or died.

        A dead worker's mini-batches, unless their gradient has come, are granted to the others. Raises PeerLost
        when another server dies.
        """
        while self._running:
            try:
                if len(self._collected) >= self._goal():
                    await self._update()
                await self._release()
                await self._hear()
            except PeerLost as lost:
                if self._layout.serves(lost.rank):
                    raise
                self._dismiss(lost.rank)
        if self._collected:
            await self._update()
        if self._measured < self._applied:  # so many workers died that the training is shorter
            self._measure()

    async def _hear(self) -> None:
        """Receive one request, and the gradient that belongs to it."""
        header = Request.room()
        status = await self._comm.recv(header, ANY, REQUEST)
        request = Request(*header.tolist())
        worker = self._running.get(status.source)
        if worker is None:  # the last words of one whose death is known
            return
        if request.batches:
            await self._collect(status.source, request)
            worker.pushed += request.batches
        worker.finished = request.clock
        if request.wanted == LEAVE:
            self._dismiss(status.source)
        elif request.wanted:
            self._held.append((status.source, request))

    async def _collect(self, worker: int, request: Request) -> None:
        """Receive a gradient."""
        gradient = self._inboxes[len(self._collected)]
        await self._comm.recv(gradient, worker, GRADIENT)
        weight = self._rules.weights[worker]
        if self._compensation is not None:
            share = self._rules.parts / weight  # from a share of the mean to the worker's own mean
            gradient *= share
            self._compensation.correct(worker, gradient, self._shard)
            gradient /= share
        staleness = self._version - request.version
        scale = 1 / max(1, staleness) if self._rules.scale_rate else 1.0
        self._collected.append(_Gradient(worker, weight * request.batches, staleness, scale, gradient))

    def _warming(self) -> bool:
        """Whether the first worker trains alone.

        Where it dies nobody takes its place: that one would get ahead of the others by more than the bound, and
        servers need not agree on how much there was left to do.
        """
        warm = self._applied < self._rules.warm_start * self._rules.weights[_FIRST]
        return warm and _FIRST in self._running

    def _goal(self) -> int:
        return 1 if self._warming() else min(self._rules.collect, len(self._running))

    async def _update(self) -> None:
        """Apply the mean of what has been collected, summed in the order of the workers' numbers.

        Where gradients have rates of their own the update's is their mean, and the gradients' mean is weighted by
        them: (1/c) sum of rate_l g_l (Zhang, Gupta et al. 2016), as a rate that an optimizer can be given.
        """
        session, workers, parts = self._session, self._layout.workers, self._rules.parts
        first, *others = sorted(self._collected, key=lambda gradient: gradient.worker)
        rate = session.learning_rate(min(self._applied // parts, session.steps - 1))
        scale = sum(one.scale for one in self._collected) / len(self._collected)
        for one in self._collected:
            vector = one.vector
            if one.scale != scale:  # by as much as its rate is more or less than the update's, the mean of theirs
                vector *= one.scale / scale
        total = first.vector
        for other in others:
            await self._comm.add(total, other.vector)
        if len(self._collected) != workers:
            total *= workers / len(self._collected)
        update = partial(session.optimizer.update, self._shard, total, rate * scale)
        await self._comm.compute("update", update)
        for one in (first, *others):
            session.journal.update(one.worker, self._version, one.staleness, rate * one.scale)
        self._version += 1
        self._applied += sum(one.parts for one in self._collected)
        self._collected.clear()
        if session.evaluation_due(self._applied // parts):
            self._measure()

    def _measure(self) -> None:
        self._snapshots.take(self._applied // self._rules.parts, self._shard, self._start)
        self._measured = self._applied

    async def _release(self) -> None:
        """Answer all that may go on, in the order in which they asked."""
        for _ in range(len(self._held)):
            worker, request = self._held.pop(0)
            if self._may_go_on(worker, request):
                await self._answer(worker, request)
            else:
                self._held.append((worker, request))

    def _may_go_on(self, worker: int, request: Request) -> bool:
        if self._budget <= 0:
            under_way = any(one.granted > one.finished for one in self._running.values())
            return request.left > 0 or not under_way  # what a dying worker leaves undone is for those who wait
        if self._warming() and worker != _FIRST:
            return False
        if self._rules.bound is None:
            return True
        others = (one.pushed for number, one in self._running.items() if number != worker)
        return min(others, default=math.inf) >= request.clock + request.wanted - 1 - self._rules.bound

    async def _answer(self, worker: int, request: Request) -> None:
        weight = self._rules.weights[worker]
        granted = max(0, min(request.wanted, -(-self._budget // weight)))
        self._budget -= granted * weight
        self._running[worker].granted += granted
        await self._comm.send(np.array(Answer(granted, self._version, self._applied)), worker, ANSWER)
        await self._comm.send(self._shard, worker, PARAMETERS)
        if self._compensation is not None:
            self._compensation.remember(worker, self._shard)

    def _dismiss(self, worker: int) -> None:
        """Count no longer on a worker that has left or died; what it was granted and has not pushed is free."""
        gone = self._running.pop(worker, None)
        if gone is not None:
            self._budget += (gone.granted - gone.pushed) * self._rules.weights[worker]
            self._held = [(other, request) for other, request in self._held if other != worker]
