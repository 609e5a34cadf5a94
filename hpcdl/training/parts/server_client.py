"""Asynchronous training with parameter servers: one server and one client for several papers.

A worker sends a :class:`Request` to every server, and the sum of its gradients if it pushes. If it fetches, a
server answers with its shard of the parameters and grants mini-batches::

    worker                                     server of a shard
    Request, gradient           ------------>  collects gradients; an update takes the mean of ``collect``
    (computes the next one)                    optimizer.update(shard, mean, rate)
    parameters                  <------------  Answer, shard: once the rules let the worker continue

All differences between the papers are in two places. :class:`Rules` tell a server how many gradients make an
update, which it discards, and how far a worker may be ahead. The strategy's ``work`` program tells when a worker
fetches and pushes.

The one rule: only servers count. They grant mini-batches, so that all W workers together train on steps x W of
them, also when one is fast or fails. A worker without a grant stops. Only the first server's grants are used.

Every update has the session's rate at the number of global batches applied. If shares are unequal, a worker's
gradient is its part of the global gradient times W, and its mini-batch counts by its share. Evaluations, after the
end, test the servers' snapshots.

If a worker fails the others train on its mini-batches that were not pushed. Its last push may reach only some
servers, as in DistBelief. If a server fails PeerLost is raised. On a mesh each model group is one worker that
follows its first rank, every part of the layers has servers of its own, and a failed rank ends the training.

Messages per exchange and server: a request, and V / ``servers`` bytes with a push (V: bytes of the parameters); an
answer and V / ``servers`` bytes with a fetch. With a compressor a push has its message for each shard. A fetch has
16 bits per parameter with fp16 and bf16.

Versions: a shard's version is the number of its updates. A request names the version of the parameters of its
first gradient; the difference when the gradient is applied is its staleness.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from hpcdl.fabric.comm import Array, Comm, PeerLost
from hpcdl.fabric.task import Task
from hpcdl.fabric.vectors import assign, no_bytes, partition, phantom
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.journal import Outcome
from hpcdl.training.parts.mesh import follow, holders
from hpcdl.training.parts.plan import MessageCodec, Piece
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.snapshots import Snapshots

REQUEST, GRADIENT, ANSWER, PARAMETERS = range(4)
"""Tags: a worker's :class:`Request`, the gradient after it, a server's :class:`Answer`, the shard after it."""
LEAVE: Final = -1
"""Value of :attr:`Request.wanted` of a worker that leaves; the server sends no answer."""
LOST_SHARD: Final = "it kept a part of the parameters"
"""Reason why training cannot continue without a server."""


class Request(NamedTuple):
    """Request of a worker to a server."""

    batches: int
    """Mini-batches in the sum of gradients that follows; 0: no gradient follows."""
    version: int
    """Version of the shard from which the first of these gradients was computed."""
    clock: int
    """Mini-batches that the worker has finished."""
    left: int
    """Mini-batches granted to the worker and not finished."""
    wanted: int
    """Mini-batches requested together with the shard; 0: neither is requested; or :data:`LEAVE`."""


class Answer(NamedTuple):
    """Answer of a server to a worker that requested parameters."""

    granted: int
    """Mini-batches granted; only the first server's number counts. 0 to a worker without mini-batches ends its
    training."""
    version: int
    applied: int
    """Parts of global batches in those updates; see :attr:`ServedRank.parts`."""


@dataclass(frozen=True)
class Layout:
    """Roles of ranks: workers are ranks 0 .. ``workers`` - 1, server s of ``servers`` is rank ``first`` + s."""

    workers: int
    servers: int
    first: int

    @staticmethod
    def of(ranks: int, servers: int, *, dedicated: bool) -> "Layout":
        """Return the roles: the first ranks are servers and workers; ``dedicated`` servers are the last ranks.

        Raises ValueError for too few ranks.
        """
        if servers < 1:
            raise ValueError(f"servers: must be at least 1, not {servers}")
        most = ranks - 1 if dedicated else ranks
        if servers > most:
            raise ValueError(
                f"servers: {servers}{' dedicated' if dedicated else ''} on {ranks} ranks, at most {most} fit"
            )
        return Layout(ranks - servers, servers, ranks - servers) if dedicated else Layout(ranks, servers, 0)

    def works(self, rank: int) -> bool:
        return rank < self.workers

    def serves(self, rank: int) -> bool:
        return self.first <= rank < self.first + self.servers

    def shards(self, vector: Array) -> list[Array]:
        """Return views of all servers' parts of a vector as long as the parameters."""
        return partition(vector, self.servers)

    def spans(self, size: int) -> list[slice]:
        """Return the slices of :meth:`shards` in a vector of ``size`` elements."""
        begins = partition(phantom(size, np.uint8), self.servers).begins
        return [slice(begin, end) for begin, end in pairwise(begins)]


class Transfers:
    """Messages of one rank, dense or encoded by the case's compressor.

    A worker encodes the part of its gradient for each shard separately. The first ``warmup_steps`` pushes of a
    worker are dense. Parameters are rounded to 16 bits if the compressor rounds values, and dense otherwise: to
    send differences, a server would have to keep the last parameters of every worker.
    """

    def __init__(self, comm: Comm, session: Session, layout: Layout) -> None:
        self._comm = comm
        self._session = session
        self._layout = layout
        self._spans = layout.spans(session.replica.parameters.size)
        self._compressed = compressed = session.compressed
        sends = layout.works(comm.rank)
        self._gradients = compressed.codec(comm.rank, layout.workers, sends=sends) if compressed else None
        self._parameters = compressed.codec_of_values(comm.rank) if compressed else None
        self._pushes = Counter[int]()
        self._received = Counter[int]()

    async def push(self, server: int, gradient: Array) -> None:
        """Send a gradient, (shard length,), to a rank; a compressor may change it.

        Raises FloatingPointError, naming push and tensor, for a value that a compressor cannot send.
        """
        number = self._pushes[server]
        self._pushes[server] += 1
        compressed, span, message = self._compressed, self._span(server), gradient
        if compressed is None or self._gradients is None or compressed.is_dense(number):
            await self._comm.send(gradient, server, GRADIENT)
        else:
            residual = None if compressed.residual is None else compressed.residual[span]
            piece = Piece(span, gradient, residual, number)
            with self._comm.scratch(self._gradients.bound(span), no_bytes(gradient)) as into:
                message = await self._gradients.write(self._comm, piece, into)
                await self._comm.send(message, server, GRADIENT)
        if compressed is not None:
            compressed.count(number, span, message.nbytes)

    async def receive_push(self, worker: int, gradient: Array) -> None:
        """Set ``gradient``, (shard length,), to what ``worker`` has sent; ValueError, naming it, if corrupt."""
        number = self._received[worker]
        self._received[worker] += 1
        dense = self._compressed is None or self._compressed.is_dense(number)
        codec = None if dense else self._gradients
        await self._receive(codec, gradient, self._span(self._comm.rank), worker, GRADIENT)

    def copy(self, shard: Array) -> Array:
        """Return memory for :meth:`write`."""
        if self._parameters is None:
            return self._session.vector("copy", shard.size)
        elements = -(-self._parameters.bound(self._span(self._comm.rank)) // shard.itemsize)
        return self._session.vector("copy", elements).view(np.uint8)

    async def write(self, shard: Array, copy: Array) -> Array:
        """Write a server's parameters to ``copy`` as they are sent; return the message.

        Raises FloatingPointError for parameters that cannot be rounded: infinite, or not a number.
        """
        if self._parameters is None:
            await self._comm.apply("copy", partial(assign, copy, shard), copy.nbytes)
            return copy
        piece = Piece(self._span(self._comm.rank), shard, None, 0)
        encode = partial(self._parameters.encode, piece, copy)
        try:
            return copy[: await self._comm.apply("encode", encode, shard.nbytes)]
        except FloatingPointError:
            raise FloatingPointError("parameters: a value is infinite or not a number") from None

    async def answer(self, worker: int, message: Array) -> None:
        """Send the message of the parameters, written by :meth:`write`, to rank ``worker``."""
        await self._comm.send(message, worker, PARAMETERS)
        compressed = self._compressed
        if compressed is not None and 0 < self._received[worker] <= compressed.plan.settings.warmup_steps:
            compressed.warmup_bytes += message.nbytes

    async def fetch(self, server: int, parameters: Array) -> None:
        """Set ``parameters``, (shard length,), to those that rank ``server`` has sent."""
        await self._receive(self._parameters, parameters, self._span(server), server, PARAMETERS)

    def _span(self, server: int) -> slice:
        return self._spans[server - self._layout.first]

    async def _receive(self, codec: MessageCodec | None, into: Array, span: slice, source: int, tag: int) -> None:
        if codec is None:
            await self._comm.recv(into, source, tag)
            return
        with self._comm.scratch(codec.bound(span), no_bytes(into)) as buffer:
            status = await self._comm.recv(buffer, source, tag)
            await codec.add(self._comm, span, {source: buffer[: status.count]}, into, base=0)


ALL: Final = "all"
"""Value of ``collect``: one gradient per worker."""


class Discards:
    """Gradients that the server of this rank has received and discarded."""

    def __init__(self) -> None:
        self.received = self.discarded = 0

    async def fields(self, comm: Comm) -> dict[str, float | None]:
        """Return the share of discarded gradients over all servers; all ranks call, once."""
        counts = np.array([float(self.received), float(self.discarded)])
        await (await comm.survivors()).native("allreduce", counts)
        return {"discarded_share": float(counts[1] / max(1, counts[0]))}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules of a strategy; the defaults are those of asynchronous SGD."""

    servers: int
    """Shards of the parameters, each with its own optimizer."""
    dedicated: bool
    """True if servers are the last ranks and do not train; else the first ranks are workers and servers."""
    collect: int | str = 1
    """Gradients of an update, or :data:`ALL`; fewer if fewer workers are running, or if all of them wait."""
    bound: int | None = None
    """Clocks of which a worker may miss updates, its own or others'; a clock is one mini-batch of one worker."""
    scale_rate: bool = False
    """True if a gradient's rate is divided by its staleness."""
    delay_compensation: str = "none"
    """Variant of :class:`hpcdl.training.parts.server.DelayCompensation`, and its lambda."""
    strength: float | None = None
    warm_start: int = 0
    """Mini-batches that the first worker trains on before the others begin."""
    discards: Discards | None = None
    """Count of discarded gradients: those of older versions are discarded, and a worker waits for the update with
    its gradient. None: all gradients are applied."""
    updates: bool = False
    """True if workers push updates, which are added to the parameters."""


class ServedRank:
    """One rank of a training with servers: its roles, its messages and its snapshots.

    Raises ValueError for a replica with loss scaling.
    """

    def __init__(self, comm: Comm, session: Session, rules: Rules) -> None:
        if session.replica.loss_scale != 1:
            raise ValueError("asynchronous training has no loss scaling; float32 and bfloat16 need none")
        self.comm = comm
        self.session = session
        self.ranks = holders(comm, session.group)
        """The ranks that hold the same parameters; :attr:`layout` counts them."""
        self.layout = layout = Layout.of(self.ranks.size, rules.servers, dedicated=rules.dedicated)
        self.weights = session.inputs.shares.among(layout.workers)
        """Weight of each worker's mini-batch in a global batch; 1 each if shares are equal."""
        self.parts = sum(self.weights)
        self.collect = layout.workers if rules.collect == ALL else int(rules.collect)
        most = -(-session.steps * self.parts // self.weights[0])
        self.rules = replace(rules, warm_start=min(rules.warm_start, most))
        if rules.discards is not None:
            session.watched.append(rules.discards)
        self.snapshots, self.transfers = Snapshots(session), Transfers(self.ranks, session, layout)


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
        self.begin(push=self._batches > 0, wanted=LEAVE)
        await self.finish()

    async def _exchange(self, server: int, request: Request, gradient: Array, parameters: Array) -> Answer | None:
        try:
            await self._comm.send(np.array(request), server, REQUEST)
            if request.batches:
                await self._rank.transfers.push(server, gradient)
            if request.wanted <= 0:
                return None
            header = np.empty(len(Answer._fields), np.int64)
            await self._comm.recv(header, server, ANSWER)
            await self._rank.transfers.fetch(server, parameters)
        except PeerLost as lost:
            raise PeerLost(lost.rank, LOST_SHARD) from None
        return Answer(*header.tolist())
