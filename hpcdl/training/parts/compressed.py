"""Exchange of compressed gradients by one rank: its compressor, its residual, and its exchanges.

In comes a piece of the flat gradient. Out comes its sum over all ranks, or nearly: what a rank did not send stays
in its residual and is added to its next gradient (error feedback)::

    gradient + residual  -- compressor -->  vectors, entries or messages  -- exchange -->  sum
                                   residual  <-  what was not sent

The compressor's product decides the exchange. Vectors are summed by any scheme. Entries, positions with values,
are summed by a scheme for entries, or sent as messages. Messages go to all ranks, or to servers that sum their
slices and send them back compressed again, with a second residual. ``plan.py`` chooses the exchange of a case.

The one rule: sent + residual = gradient + earlier residual, on every rank and for every element.
"""

import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from hpcdl.aggregation.parts.entries import Reduced, Series, nbytes
from hpcdl.aggregation.parts.messages import transfer
from hpcdl.aggregation.parts.traits import half
from hpcdl.aggregation.ring import ring
from hpcdl.compression.parts.protocol import Layout, SharedScalers, Sparse, Summable, Tensor, kernels
from hpcdl.compression.parts.selection import SparseMessages, VectorMessages
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import no_bytes
from hpcdl.training.parts.plan import MessageCodec, Piece, Plan, located

SparseSum = Callable[[Comm, Sparse, Series], Coroutine[Any, Any, Reduced]]
Sum = Callable[..., Coroutine[Any, Any, Any]]
Gather = Callable[[Comm, Array, int], Coroutine[Any, Any, list[Array]]]


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
    with comm.scratch(comm.size * codec.bound(piece.span), no_bytes(piece.gradient)) as table:
        messages = await gather(comm, table, len(await codec.write(comm, piece, table)))
        await codec.add(comm, piece.span, dict(enumerate(messages)), piece.gradient, base=0)


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
        stops = [tensor.span.stop for tensor in tensors if span.start < tensor.span.stop <= span.stop]
        edges = [0, *(stop - span.start for stop in stops), size]
        ends = [min(edges, key=lambda edge: (abs(edge - end), edge)) for end in ends[:-1]] + [size]
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


class Fidelity(NamedTuple):
    """Loss of information by compression; not a number where it is not defined."""

    residual_norm: float
    """Root mean square of the residuals' norms over the ranks that have one."""
    cosine: float
    """Of the angle between the compressed and the dense sum of the gradients."""
    error: float
    """Norm of the difference of these sums, by the norm of the dense one."""


SEED_OF_SUMS: Final = 1 << 32
"""Added to the seed of a server's answers, so that they do not repeat the draws of its gradient's message."""
NO_FIDELITY: Final = Fidelity(math.nan, math.nan, math.nan)


@dataclass(eq=False)
class Compressed:
    """Exchange of compressed gradients by one rank.

    With error feedback (Seide et al. 2014; Stich et al. 2018) a compressor gets gradient plus residual, and the
    residual becomes what it has not sent. Dense first steps use the case's aggregation; a ring if that is sparse.

    ``layout``: of the flat gradient, of any rank. ``vector(name, size)`` makes the residuals. ``watched(step)``:
    whether :meth:`fidelity` follows a step.
    """

    plan: Plan
    layout: Layout
    vector: Callable[..., Array]
    watched: Callable[[int], bool]

    def __post_init__(self) -> None:
        self.residual: Array | None = None
        """Values not sent yet, from the first exchange on; None without error feedback."""
        self._dense: Array | None = None
        self.exchanges: dict[tuple[int, int], int] = {}
        """Number of exchanges so far, dense ones included, by the bounds of the part."""
        self.compressor: Any = None
        """Compressor of this rank, from the first exchange on."""
        self.messages: SparseMessages | None = None
        """Encoder of this rank's entries; None if it sends none as messages."""
        self._residuals: dict[tuple[int, int], Array] = {}
        self._series: dict[tuple[int, int], Series] = {}
        """Sums of entries, by the bounds of the part."""
        self._exchange: Callable[[Comm, Piece, Sum], Coroutine[Any, Any, None]] | None = None
        self.state: dict[str, Array] = {}
        self.warmup_bytes = 0.0
        """Bytes that this rank sent in dense first exchanges; schemes that do not gather are taken for a ring."""

    async def reduce(self, comm: Comm, span: slice, gradient: Array, aggregate: Sum, *, keep: bool = True) -> None:
        """Replace ``gradient``, the part ``span`` of the flat gradient, by its compressed sum over all ranks.

        ``aggregate``: the case's scheme. ``keep`` watched gradients, for :meth:`fidelity`. Raises ValueError,
        naming the sender, for a corrupt message, and FloatingPointError, naming step and tensor, for no number.
        """
        if self._exchange is None:
            self._exchange = self._begin(comm)
        step = self.exchanges.get((span.start, span.stop), 0)
        self.exchanges[span.start, span.stop] = step + 1
        if keep and self.watched(step):
            await comm.apply("copy", partial(self._keep, span, gradient), gradient.nbytes)
        if self.is_dense(step):
            vectors = 1 if self.plan.aggregation.gathers else 2 / comm.size
            self.warmup_bytes += vectors * (comm.size - 1) * gradient.nbytes
            await self.dense(aggregate)(comm, gradient)
            return
        residual = None if self.residual is None else self.residual[span]
        await self._exchange(comm, Piece(span, gradient, residual, step), aggregate)

    def is_dense(self, number: int) -> bool:
        """Return True if the exchange ``number`` is one of the first, which are dense."""
        return number < self.plan.settings.warmup_steps

    def count(self, number: int, span: slice, sent: int) -> None:
        """Count the exchange ``number`` of the part ``span``, messages to single ranks; ``sent`` bytes in all."""
        self.exchanges[span.start, span.stop] = number + 1
        if self.is_dense(number):
            self.warmup_bytes += sent

    def dense(self, aggregate: Sum) -> Sum:
        """Return the scheme of dense sums: ``aggregate``, or a ring if that is sparse."""
        return ring if self.plan.aggregation.sparse else aggregate

    @property
    def _unsent(self) -> Array | None:
        """Residual of this rank, or of its compressor; None without error feedback."""
        name = self.plan.traits.own_residual
        return self.state.get(name) if name else self.residual

    async def fidelity(self, comm: Comm, exchanged: Array) -> Fidelity:
        """Compare ``exchanged``, the last sum of the whole gradient, with the dense sum. Collective."""
        residual = self._unsent
        square = np.array([0.0, 0.0] if residual is None else [float(residual @ residual), 1.0])
        await comm.native("allreduce", square)
        norm = math.sqrt(square[0] / square[1]) if square[1] else math.nan
        if self._dense is None:
            return NO_FIDELITY._replace(residual_norm=norm)
        await comm.native("allreduce", self._dense)
        dense = self._dense

        def compare() -> Fidelity:
            lengths = [float(np.linalg.norm(vector)) for vector in (exchanged, dense)]
            if not all(lengths):
                return NO_FIDELITY._replace(residual_norm=norm)
            cosine = float(np.vdot(exchanged, dense)) / math.prod(lengths)
            return Fidelity(norm, cosine, float(np.linalg.norm(exchanged - dense)) / lengths[1])

        return await comm.compute("evaluation", compare)

    def _keep(self, span: slice, gradient: Array) -> None:
        if self._dense is None:
            self._dense = np.zeros_like(gradient, shape=self.layout.size)
        self._dense[span] = gradient

    def _begin(self, comm: Comm) -> Callable[[Comm, Piece, Sum], Coroutine[Any, Any, None]]:
        plan, tensors = self.plan, self.layout.tensors
        scheme, settings = plan.aggregation, plan.scheme_settings
        layout = replace(self.layout, rank=comm.rank, ranks=comm.size)
        self._make(layout)
        compressor = self.compressor
        if plan.kind == "vectors":
            return lambda comm, piece, aggregate: by_sums(comm, compressor, piece, aggregate, tensors)
        if scheme.sparse:
            return partial(self._sum_entries, partial(plan.scheme, **settings))
        codec = self._codec(compressor, layout)
        if scheme.gathers:
            gather = half(partial(plan.scheme, **settings), "gather")
            return lambda comm, piece, _: by_messages(comm, codec, piece, gather)
        assert scheme.servers is not None, "Plan.check"
        servers = scheme.servers(comm.size, settings)
        whole = tensors if plan.traits.whole_tensors else None
        residual: Callable[[slice], Array | None] = self._residual_of_sums
        if hasattr(compressor, "of_sums"):
            answers, residual = self._codec(compressor.of_sums(), layout), lambda _: None
        else:
            back = plan.make(replace(layout, seed=layout.seed + SEED_OF_SUMS))
            self.state.update({f"{name} of sums": vector for name, vector in back.state.items()})
            answers = self._codec(back, layout)
        return lambda comm, piece, _: by_servers(
            comm, codec, piece, shards(piece.span, servers, whole), answers, residual
        )

    async def _sum_entries(self, scheme: SparseSum, comm: Comm, piece: Piece, _aggregate: Sum) -> None:
        """Sum the entries that the selector sends of a piece; those that the sum lacks return to the residual.

        Raises FloatingPointError, naming step and tensor, for a value that is not finite.
        """
        selector, layout, gradient, own = (
            self.compressor,
            self.layout,
            piece.gradient,
            self.plan.traits.own_residual,
        )
        residual = self.state[own][piece.span] if own and piece.residual is None else piece.residual
        series = Series(len(gradient), selector.most(piece.span))
        series = self._series.setdefault((piece.span.start, piece.span.stop), series)

        def select() -> Sparse:
            vector = piece.add_residual()
            with located(piece, vector, layout.tensors):
                return selector.select(piece.span, vector, piece.step)  # type: ignore[no-any-return]

        def write() -> None:
            entries = kernels(layout.device, "entries")  # gradient and residual may be on a device
            gradient[:] = 0
            entries.put(*total, gradient)
            if residual is not None:
                entries.add(*rest, residual)

        selected = await comm.apply("encode", select, 2 * gradient.nbytes)
        total, rest = await scheme(comm, selected, series)
        await comm.apply("decode", write, gradient.nbytes + nbytes(total, rest))

    def codec(self, rank: int, ranks: int, *, sends: bool = True, residual: bool = True) -> MessageCodec:
        """Return the writer and reader of messages between two ranks, of which ``ranks`` send gradients.

        ``sends``: this rank sends gradients. ``residual``: it keeps what is not sent, with error feedback.
        """
        layout = replace(self.layout, rank=rank, ranks=ranks)
        if not sends:
            return self._codec(self.plan.make(layout), layout)
        self._make(layout, residual=residual)
        return self._codec(self.compressor, layout)

    def codec_of_values(self, rank: int) -> MessageCodec | None:
        """Return the writer and reader of parameters; None unless the compressor rounds values."""
        if not self.plan.traits.rounds_values:
            return None
        compressor = self.plan.make(replace(self.layout, rank=rank, ranks=1))
        self.state.update({f"{name} of parameters": vector for name, vector in compressor.state.items()})
        return MessageCodec(VectorMessages(compressor, fed_back=False), self.layout.tensors, rank, sparse=False)

    def _make(self, layout: Layout, *, residual: bool = True) -> None:
        self.compressor = self.plan.make(layout)
        self.state.update(self.compressor.state)
        self.residual = self.vector("residual") if residual and self.plan.feeds_back else None

    def _codec(self, compressor: Any, layout: Layout) -> MessageCodec:
        encoder = self.plan.encoder(compressor, layout)
        if self.messages is None and isinstance(encoder, SparseMessages):
            self.messages = encoder
        return self.plan.codec(encoder, self.layout.tensors, layout.rank, sparse=self.plan.kind == "entries")

    @property
    def memory_bytes(self) -> int:
        """Bytes of this rank's residuals and of the compressor's vectors."""
        held = [*self.state.values(), *self._residuals.values()]
        return sum(vector.nbytes for vector in held) + (0 if self.residual is None else self.residual.nbytes)

    def _residual_of_sums(self, span: slice) -> Array | None:
        """Return what this server's answers for the shard ``span`` have not sent; None without error feedback."""
        if not self.plan.feeds_back:
            return None
        bounds = span.start, span.stop
        if bounds not in self._residuals:
            name = f"residual of sums {span.start}"
            self._residuals[bounds] = self.vector(name, span.stop - span.start)
        return self._residuals[bounds]
