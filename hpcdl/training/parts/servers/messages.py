"""Rules of the strategies with servers, and messages between workers and servers."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import assign, no_bytes, partition, phantom
from hpcdl.training.parts.compressed.plan import MessageCodec, Piece
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.snapshots import Snapshots
from hpcdl.training.parts.split.model_group import holders

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
    """Parts of global batches in those updates; see
    :attr:`hpcdl.training.parts.servers.messages.ServedRank.parts`."""


def buffer(kind: type[Request | Answer]) -> npt.NDArray[np.int64]:
    """Return a receive buffer for a message."""
    return np.empty(len(kind._fields), np.int64)


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
            await compressed.before(self._comm, number, gradient)
            with self._comm.scratch(self._gradients.bound(span), no_bytes(gradient)) as into:
                message = await self._gradients.write(self._comm, piece, into)
                await self._comm.send(message, server, GRADIENT)
            await compressed.after(self._comm, span, number)
        if compressed is not None:
            compressed.count(number, gradient.nbytes, message.nbytes)

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

    async def answer(self, worker: int, message: Array, shard: Array) -> None:
        """Send the message of the parameters, written by :meth:`write`, to rank ``worker``."""
        await self._comm.send(message, worker, PARAMETERS)
        compressed = self._compressed
        if compressed is None:
            return
        if self._parameters is not None:
            compressed.saved_bytes += shard.nbytes - message.nbytes
        elif 0 < self._received[worker] <= compressed.plan.settings.warmup_steps:
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
STRENGTHS: Final = {"constant": 0.04, "adaptive": 2.0}
"""lambda and lambda_0 of delay compensation, by variant, of the CIFAR-10 experiments of section 6."""
PASSES: Final = 5
"""Passes over a vector that one correction writes."""
_MEMORY: Final = 0.95
_EPSILON: Final = 1e-7


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
    """Variant of :class:`hpcdl.training.parts.servers.messages.DelayCompensation`, and its lambda."""
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
