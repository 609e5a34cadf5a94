"""Exchanges of compressed gradients: sums of entries or vectors, messages to all ranks, servers of shards."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from hpcdl.aggregation.parts.entries import Reduced, Series, nbytes
from hpcdl.aggregation.parts.messages import transfer
from hpcdl.compression.parts.protocol import Selector, SharedScalers, Sparse, Summable, Tensor, kernels
from hpcdl.fabric.comm import Array, Comm, Device
from hpcdl.fabric.vectors import no_bytes
from hpcdl.training.parts.compressed.plan import MessageCodec, Piece, located

SparseSum = Callable[[Comm, Sparse, Series], Coroutine[Any, Any, Reduced]]
Sum = Callable[[Comm, Array], Coroutine[Any, Any, None]]
Gather = Callable[[Comm, Array, int], Coroutine[Any, Any, list[Array]]]


@dataclass(eq=False)
class SparseSums:
    """Sums of the entries that one rank's selector sends, of all pieces of the gradient.

    Entries that a sum lacks return to the residual.
    """

    selector: Selector
    scheme: SparseSum
    tensors: Sequence[Tensor]
    own_residual: Array | None
    """Residual of the selector itself, (size of the gradient,)."""
    device: Device | None
    """Device that holds gradient and residual; entries are on the host."""
    _series: dict[tuple[int, int], Series] = field(default_factory=dict)

    async def reduce(self, comm: Comm, piece: Piece) -> None:
        """Replace the gradient of a piece by the sum of all ranks' entries; raises FloatingPointError."""
        span, gradient = piece.span, piece.gradient
        key = span.start, span.stop
        if key not in self._series:
            self._series[key] = Series(len(gradient), self.selector.most(span))
        entries = await comm.apply("encode", partial(self._select, piece), 2 * gradient.nbytes)
        total, rest = await self.scheme(comm, entries, self._series[key])
        residual = piece.residual
        if residual is None and self.own_residual is not None:
            residual = self.own_residual[span]
        await comm.apply(
            "decode", partial(self._write, total, rest, gradient, residual), gradient.nbytes + nbytes(total, rest)
        )

    def _select(self, piece: Piece) -> Sparse:
        vector = piece.add_residual()
        with located(piece, vector, self.tensors):
            return self.selector.select(piece.span, vector, piece.step)

    def _write(self, total: Sparse, rest: Sparse, gradient: Array, residual: Array | None) -> None:
        entries = kernels(self.device, "entries")
        gradient[:] = 0
        entries.put(*total, gradient)
        if residual is not None:
            entries.add(*rest, residual)


async def by_sums(
    comm: Comm, compressor: Summable, piece: Piece, aggregate: Sum, tensors: Sequence[Tensor]
) -> None:
    """Sum the vectors that a compressor makes of a piece, one after the other, by any aggregation."""
    gradient, residual = piece.gradient, piece.residual
    passes = 1 if residual is None else 3

    def begin() -> tuple[Iterator[Array], Array | None]:
        nonlocal gradient
        if residual is not None:
            gradient += residual
        rounds = compressor.rounds(piece.span, gradient, residual, piece.step)
        return rounds, _next(rounds, piece, tensors)

    rounds, vector = await comm.apply("encode", begin, passes * gradient.nbytes)
    while vector is not None:
        await aggregate(comm, vector)
        vector = await comm.apply("decode", partial(_next, rounds, piece, tensors), gradient.nbytes)


def _next(rounds: Iterator[Array], piece: Piece, tensors: Sequence[Tensor]) -> Array | None:
    with located(piece, piece.gradient, tensors):
        return next(rounds, None)


async def by_messages(comm: Comm, codec: MessageCodec, piece: Piece, gather: Gather) -> None:
    """Encode a piece, gather all messages, and decode them in the order of ranks, so that bits are equal."""
    span, gradient = piece.span, piece.gradient
    with comm.scratch(comm.size * codec.bound(span), no_bytes(gradient)) as table:
        message = await codec.write(comm, piece, table)
        messages = await gather(comm, table, len(message))
        await codec.add(comm, span, dict(enumerate(messages)), gradient, base=0)


async def by_servers(
    comm: Comm,
    codec: MessageCodec,
    piece: Piece,
    shards: Sequence[slice],
    answers: MessageCodec,
    residual: Callable[[slice], Array | None],
) -> None:
    """Sum a piece at servers: rank s sums the shard ``shards[s]``, encodes the sum and sends it to all ranks.

    A server adds the decoded messages in the order of the ranks. All ranks decode the same answer and have the
    same bits. In round k a rank sends to the server at the distance k. ``answers`` encodes the sums; ``residual``
    returns what this server's answers for a shard have not sent.

    Messages, busiest rank: 2*(p - 1), and those of :func:`share_scalers`
    """
    size, rank, servers = comm.size, comm.rank, len(shards)
    gradient = piece.gradient
    pieces = [piece.part(shard.start, shard.stop) for shard in shards]
    bounds = [codec.bound(shard.span) for shard in pieces]
    empty = no_bytes(gradient)
    if codec.sharing:
        await share_scalers(comm, codec, codec.sharing, pieces)
    with ExitStack() as stack:
        outgoing = [stack.enter_context(comm.scratch(bound, empty)) for bound in bounds]
        outgoing = [await codec.write(comm, *pair) for pair in zip(pieces, outgoing, strict=True)]
        serves = rank < servers
        arrived: dict[int, Array] = {}
        for distance in range(1, size):
            server, worker = (rank + distance) % size, (rank - distance) % size
            inbox = stack.enter_context(comm.scratch(bounds[rank], empty)) if serves else empty
            message = outgoing[server] if server < servers else None
            arrived[worker] = await transfer(comm, message, server, inbox if serves else None, worker)
        answer = empty
        if serves:
            arrived[rank] = outgoing[rank]
            shard = pieces[rank]._replace(residual=residual(pieces[rank].span))
            await codec.add(comm, shard.span, dict(sorted(arrived.items())), shard.gradient, base=0)
            into = stack.enter_context(comm.scratch(answers.bound(shard.span), empty))
            answer = await answers.write(comm, shard, into)
        for distance in range(1, size):
            worker, server = (rank + distance) % size, (rank - distance) % size
            inbox = empty
            if server < servers:
                inbox = stack.enter_context(comm.scratch(answers.bound(pieces[server].span), empty))
            message = answer if serves else None
            came = await transfer(comm, message, worker, inbox if server < servers else None, server)
            if server < servers:
                decode = partial(_replace, answers, pieces[server], came, server)
                await comm.apply("decode", decode, pieces[server].gradient.nbytes)
        if serves:
            decode = partial(_replace, answers, pieces[rank], answer, rank)
            await comm.apply("decode", decode, pieces[rank].gradient.nbytes)


def _replace(answers: MessageCodec, shard: Piece, message: Array, server: int) -> None:
    """Replace the gradient of a shard by the sum in the message of a server."""
    shard.gradient[:] = 0
    answers.decode(shard.span, message, server, shard.gradient)


async def share_scalers(comm: Comm, codec: MessageCodec, encoder: SharedScalers, pieces: Sequence[Piece]) -> None:
    """Give the encoder the largest of all ranks' scalers of each segment, by dissemination.

    Messages per rank: ceil(log2 p). A rank may count twice in a maximum, so that p need be no power of two.
    """
    touched = sum(piece.gradient.nbytes for piece in pieces)
    scalers = await comm.apply("encode", lambda: [codec.scalers(piece) for piece in pieces], touched)
    shared, distance = np.concatenate(scalers), 1
    inbox = np.empty_like(shared)
    while distance < comm.size:
        dest, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        await comm.exchange(shared, dest, inbox, source)
        np.maximum(shared, inbox, out=shared)
        distance *= 2
    ends = np.cumsum([len(each) for each in scalers])[:-1]
    for piece, part in zip(pieces, np.split(shared, ends), strict=True):
        encoder.share(piece.span, part)


def shards(span: slice, servers: int, tensors: Sequence[Tensor] | None) -> list[slice]:
    """Cut ``span`` into ``servers`` parts, counted from its start; between ``tensors`` only, unless None."""
    size = span.stop - span.start
    ends = [size * (number + 1) // servers for number in range(servers)]
    if tensors is not None:
        edges = [
            0,
            *(tensor.span.stop - span.start for tensor in tensors if span.start < tensor.span.stop <= span.stop),
            size,
        ]
        ends = [min(edges, key=lambda edge: (abs(edge - end), edge)) for end in ends[:-1]] + [size]
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
