"""Server of asynchronous training: keeps one shard of the parameters and grants mini-batches."""

import sys
from dataclasses import dataclass
from functools import partial
from operator import imul, itruediv
from typing import Final, NamedTuple

import numpy as np

from hpcdl.fabric.comm import ANY, Array, PeerLost
from hpcdl.fabric.task import Task
from hpcdl.fabric.vectors import partition
from hpcdl.optim.sgd import SGD
from hpcdl.training.parts import server_client
from hpcdl.training.parts.mesh import leads
from hpcdl.training.parts.server_client import Answer, Request, ServedRank
from hpcdl.training.parts.session import Session

_FIRST: Final = 0
"""The worker that trains alone during the warm start."""
STRENGTHS: Final = {"constant": 0.04, "adaptive": 2.0}
"""lambda and lambda_0 of delay compensation, by variant, of the CIFAR-10 experiments of section 6."""
PASSES: Final = 5
"""Passes over a vector that one correction writes."""
_MEMORY: Final = 0.95
_EPSILON: Final = 1e-7


class DelayCompensation:
    """Delay compensation (Zheng et al. 2017, equation 10): g + lambda g g (w - w_backup), for one shard.

    The backups are the parameters last sent to each worker. lambda is ``strength``; if ``adaptive`` it is strength
    / sqrt(m + epsilon), m a moving mean of g g: DC-ASGD-a (equation 14).
    """

    def __init__(self, session: Session, workers: int, size: int, variant: str, strength: float | None) -> None:
        self._backups = partition(session.vector("backups", workers * size), workers)
        self._strength = STRENGTHS[variant] if strength is None else strength
        self._mean_square = session.vector("mean square", size) if variant == "adaptive" else None

    def remember(self, worker: int, parameters: Array) -> None:
        self._backups[worker][:] = parameters

    def correct(self, worker: int, gradient: Array, parameters: Array) -> None:
        """Change ``worker``'s gradient (n,) of a mean loss in place to an estimate at ``parameters`` (n,)."""
        change = parameters - self._backups[worker]
        change *= gradient
        change *= gradient
        change *= self._strength
        if self._mean_square is not None:
            self._mean_square *= _MEMORY
            self._mean_square += (1 - _MEMORY) * gradient * gradient
            change /= np.sqrt(self._mean_square + _EPSILON)
        gradient += change


class _Gradient(NamedTuple):
    worker: int
    batches: int
    parts: int
    staleness: int
    scale: float
    vector: Array


@dataclass
class _Worker:
    """State of a running worker, in mini-batches; other workers start at the length of the warm start."""

    granted: int
    finished: int
    pushed: int
    applied: int
    """Pushed, and in an update of the shard or discarded."""


class Server:
    """Server of one shard, with its optimizer and the state of the running workers.

    Answers are sent from a copy of the shard, so that meanwhile the server receives the next request and makes the
    next update.

    Memory, in shards: 1 for the parameters, 1 for the copy, ``collect`` for gradients that wait for an update, the
    optimizer's state; with delay compensation 1 for each worker, 1 more if it is adaptive.
    """

    def __init__(self, rank: ServedRank) -> None:
        self._rank = rank
        self._rules = rules = rank.rules
        self._comm = comm = rank.ranks
        self._session = session = rank.session
        self._layout = layout = rank.layout
        self._transfers = rank.transfers
        initial = session.replica.parameters
        span = layout.spans(initial.size)[comm.rank - layout.first]
        shard = initial[span]
        self._start = span.start
        self._optimizer = session.second_optimizer(SGD()) if rules.updates else session.optimizer_of(span)
        self._shard = session.vector("shard", shard.size)
        self._shard[:] = shard
        self._compensation: DelayCompensation | None = None
        if rules.delay_compensation != "none":
            self._compensation = DelayCompensation(
                session, layout.workers, shard.size, rules.delay_compensation, rules.strength
            )
        self._copy = self._message = self._transfers.copy(shard)
        self._copied = -1
        """Version of the shard in the copy."""
        self._answering: Task[None] | None = None
        """Task that sends the last answer under way."""
        self._inboxes = partition(session.vector("collected", rank.collect * shard.size), rank.collect)
        self._collected: list[_Gradient] = []
        self._version = 0
        self._applied = 0
        self._evaluated = -1
        # only the first server grants mini-batches, because two servers could disagree
        grants = comm.rank == layout.first and leads(session.group)
        self._budget = session.steps * rank.parts if grants else sys.maxsize
        clocks = [0, *[rules.warm_start] * (layout.workers - 1)]
        self._running = {worker: _Worker(clock, clock, clock, clock) for worker, clock in enumerate(clocks)}
        self._waiting: list[tuple[int, Request]] = []

    async def serve(self) -> None:
        """Answer requests until every worker has left or failed.

        A failed worker's mini-batches, unless their gradient has arrived, are granted to the others. Raises
        PeerLost when another server fails.
        """
        while self._running:
            try:
                wanted = 1 if self._warm_start_running() else min(self._rank.collect, len(self._running))
                if len(self._collected) >= wanted:
                    await self._update()
                await self._answer_allowed()
                if self._collected and len(self._waiting) == len(self._running):
                    # all workers wait for gradients that were pushed, but are fewer than ``collect``
                    await self._update()
                else:
                    await self._receive_request()
            except PeerLost as lost:
                if self._layout.serves(lost.rank):
                    raise PeerLost(lost.rank, server_client.LOST_SHARD) from None
                self._remove_worker(lost.rank)
        await self._finish_answers()
        if self._collected:
            await self._update()
        if self._evaluated < self._applied:  # so many workers failed that the training is shorter
            self._take_snapshot()

    async def _receive_request(self) -> None:
        header = np.empty(len(Request._fields), np.int64)
        status = await self._comm.recv(header, ANY, server_client.REQUEST)
        request = Request(*header.tolist())
        worker = self._running.get(status.source)
        if worker is None:  # a late request of a worker whose failure is known
            return
        if request.batches and await self._receive_gradient(status.source, request):
            worker.pushed += request.batches
        worker.finished = request.clock
        if request.wanted == server_client.LEAVE:
            self._remove_worker(status.source)
        elif request.wanted:
            self._waiting.append((status.source, request))

    async def _receive_gradient(self, worker: int, request: Request) -> bool:
        """Receive a gradient and correct it by the delay compensation; return False if it is discarded."""
        gradient = self._inboxes[len(self._collected)]
        await self._transfers.receive_push(worker, gradient)
        staleness = self._version - request.version
        if (discards := self._rules.discards) is not None:
            discards.received += 1
            if staleness:
                discards.discarded += 1
                return False
        weight = self._rank.weights[worker]
        if self._compensation is not None:
            share = self._rank.parts / weight  # converts the part of the global mean to the worker's own mean
            await self._comm.apply("mean", partial(imul, gradient, share), gradient.nbytes)
            correct = partial(self._compensation.correct, worker, gradient, self._shard)
            await self._comm.apply("compensation", correct, PASSES * gradient.nbytes)
            await self._comm.apply("mean", partial(itruediv, gradient, share), gradient.nbytes)
        scale = 1 / max(1, staleness) if self._rules.scale_rate else 1.0
        self._collected.append(
            _Gradient(worker, request.batches, weight * request.batches, staleness, scale, gradient)
        )
        return True

    def _warm_start_running(self) -> bool:
        """Return whether the first worker trains alone.

        If it fails no other worker replaces it: servers need not agree on the number of remaining mini-batches.
        """
        warm = self._applied < self._rules.warm_start * self._rank.weights[_FIRST]
        return warm and _FIRST in self._running

    async def _update(self) -> None:
        """Apply the mean of the collected gradients, summed in the order of the workers' numbers.

        If gradients have different rates the update has the mean rate, and the gradients' mean is weighted by the
        rates: (1/c) sum of rate_l g_l (Zhang, Gupta et al. 2016).
        """
        session, workers, parts = self._session, self._layout.workers, self._rank.parts
        first, *others = sorted(self._collected, key=lambda gradient: gradient.worker)
        rate = session.learning_rate(min(self._applied // parts, session.steps - 1))
        scale = sum(gradient.scale for gradient in self._collected) / len(self._collected)
        for gradient in self._collected:
            if gradient.scale != scale:  # weight: the gradient's rate / the update's rate
                weigh = partial(imul, gradient.vector, gradient.scale / scale)
                await self._comm.apply("mean", weigh, gradient.vector.nbytes)
        total = first.vector
        for other in others:
            await self._comm.add(total, other.vector)
        if len(self._collected) != workers:
            mean = partial(imul, total, workers / len(self._collected))
            await self._comm.apply("mean", mean, total.nbytes)
        if self._rules.updates:
            await self._comm.apply(
                "server update", partial(self._optimizer.update, self._shard, total, scale), self._shard.nbytes
            )
        else:
            await session.update_part(self._comm, self._optimizer, self._shard, total, rate * scale)
        for gradient in (first, *others):
            session.journal.update(gradient.worker, self._version, gradient.staleness, rate * gradient.scale)
            if gradient.worker in self._running:
                self._running[gradient.worker].applied += gradient.batches
        if self._rules.discards is not None:
            # mini-batches under way are discarded, and can be granted again at once
            for worker, running in self._running.items():
                discarded = running.granted - running.pushed
                self._budget += discarded * self._rank.weights[worker]
                running.finished = running.pushed = running.granted
                running.applied += discarded
        self._version += 1
        self._applied += sum(gradient.parts for gradient in self._collected)
        self._collected.clear()
        if session.evaluation.due(self._applied // parts):
            self._take_snapshot()

    def _take_snapshot(self) -> None:
        self._rank.snapshots.take(self._applied // self._rank.parts, self._shard, self._start)
        self._evaluated = self._applied

    async def _answer_allowed(self) -> None:
        for waiting in list(self._waiting):
            # a worker may fail while another is answered
            if waiting in self._waiting and self._may_continue(*waiting):
                self._waiting.remove(waiting)
                await self._answer(*waiting)

    def _may_continue(self, worker: int, request: Request) -> bool:
        if self._budget <= 0:
            under_way = any(running.granted > running.finished for running in self._running.values())
            return request.left > 0 or not under_way  # waiting workers repeat the mini-batches of a failed one
        if self._warm_start_running() and worker != _FIRST:
            return False
        if self._rules.discards is not None:
            return self._running[worker].pushed == self._running[worker].applied
        if self._rules.bound is None:
            return True
        slowest = min(running.applied for running in self._running.values())
        return slowest >= request.clock + request.wanted - 1 - self._rules.bound

    async def _answer(self, worker: int, request: Request) -> None:
        """Grant mini-batches and start to send the present shard."""
        weight = self._rank.weights[worker]
        granted = max(0, min(request.wanted, -(-self._budget // weight)))
        self._budget -= granted * weight
        self._running[worker].granted += granted
        if self._compensation is not None:
            remember = partial(self._compensation.remember, worker, self._shard)
            await self._comm.apply("copy", remember, self._shard.nbytes)
        # Answers of one version share a copy, because the shard may change while they are under way.
        if self._copied != self._version:
            await self._finish_answers()
            self._message = await self._transfers.write(self._shard, self._copy)
            self._copied = self._version
        answer = Answer(granted, self._version, self._applied)
        self._answering = self._comm.start(self._send(worker, answer, self._answering), shared_tags=True)

    async def _send(self, worker: int, answer: Answer, previous: Task[None] | None) -> None:
        if previous is not None:
            await previous
        try:
            await self._comm.send(np.array(answer), worker, server_client.ANSWER)
            await self._transfers.answer(worker, self._message)
        except PeerLost as lost:
            if self._layout.serves(lost.rank):
                raise PeerLost(lost.rank, server_client.LOST_SHARD) from None
            self._remove_worker(lost.rank)

    async def _finish_answers(self) -> None:
        if self._answering is not None:
            await self._answering
            self._answering = None

    def _remove_worker(self, worker: int) -> None:
        removed = self._running.pop(worker, None)
        if removed is not None:
            self._budget += (removed.granted - removed.pushed) * self._rank.weights[worker]
            self._waiting = [(other, request) for other, request in self._waiting if other != worker]
