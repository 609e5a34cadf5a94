"""Messages of gradients and parameters between workers and servers of asynchronous training."""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import assign, no_bytes, partition, phantom
from hpcdl.training.parts.compressed.piece import MessageCodec, Piece
from hpcdl.training.parts.session import Session

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
    :attr:`hpcdl.training.parts.servers.rules.ServedRank.parts`."""


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
        bounds = accumulate((shard.size for shard in self.shards(phantom(size, np.uint8))), initial=0)
        return [slice(begin, end) for begin, end in pairwise(bounds)]


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
        self._gradients: MessageCodec | None = None
        self._parameters: MessageCodec | None = None
        if compressed is not None:
            self._gradients = compressed.codec(comm.rank, layout.workers, sends=layout.works(comm.rank))
            self._parameters = compressed.codec_of_values(comm.rank)
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
