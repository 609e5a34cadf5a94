"""Exchange of compressed gradients by servers, each of which decodes, sums and encodes one shard."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.aggregation.parts.messages import HEADER, no_bytes, opened, padded, seal
from hpcdl.compression.parts.device import to_device, to_host
from hpcdl.fabric.vectors import Phantom

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcdl.compression.parts.device import Device
    from hpcdl.compression.parts.protocol import Tensor
    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.training.parts.compressed.piece import Courier, Piece


class Answers:
    """Messages of the sums, dense or encoded again."""

    def __init__(
        self, courier: Courier | None, residual: Callable[[slice], Array | None], rank: int, device: Device | None
    ) -> None:
        self._courier = courier
        """Encoder of the sums; None: sums are sent dense."""
        self._residual = residual
        """Returns the values of a shard that earlier answers of this server have not sent."""
        self._rank = rank
        self._device = device
        """Device that holds the gradient; messages are on the host."""

    def bound(self, shard: Piece) -> int:
        """Return the most bytes of a message."""
        return padded(shard.gradient.nbytes) if self._courier is None else self._courier.bound(shard.span)

    def encode(self, shard: Piece, into: Array) -> int:
        """Write the message of a shard's sum to ``into``; return its bytes."""
        if self._courier is not None:
            return self._courier.encode(shard._replace(residual=self._residual(shard.span)), into)
        if type(into) is Phantom:
            return padded(shard.gradient.nbytes)
        into[HEADER : HEADER + shard.gradient.nbytes] = to_host(self._device, shard.gradient).view(np.uint8)
        return seal(into, shard.gradient.nbytes, self._rank)

    def decode(self, shard: Piece, message: Array, server: int) -> None:
        """Replace the gradient of a shard by the sum in the message of a server."""
        if type(message) is Phantom:
            return
        if self._courier is None:
            content = opened(message, server)
            if len(content) != shard.gradient.nbytes:
                raise ValueError(f"message of rank {server}: corrupt: {len(content)} bytes of a sum")
            shard.gradient[:] = to_device(self._device, content.view(shard.gradient.dtype))
            return
        shard.gradient[:] = 0
        self._courier.decode(shard.span, message, server, shard.gradient)


async def by_servers(
    comm: Comm, courier: Courier, piece: Piece, shards: Sequence[slice], answers: Answers
) -> None:
    """Sum a piece at servers: rank s sums the shard ``shards[s]`` and sends the sum to all ranks.

    A server adds the decoded messages in the order of the ranks. All ranks decode the same answer, the server
    too, and have the same bits. In round k a rank sends to the server at the distance k.

    Messages, busiest rank: 2*(p - 1)
    """
    size, rank, servers = comm.size, comm.rank, len(shards)
    gradient = piece.gradient
    pieces = [piece.part(shard.start, shard.stop) for shard in shards]
    bounds = [courier.bound(one.span) for one in pieces]
    empty = no_bytes(gradient)
    with ExitStack() as stack:
        outgoing = [stack.enter_context(comm.scratch(bound, empty)) for bound in bounds]
        lengths = [
            await comm.apply("encode", partial(courier.encode, one, into), 2 * one.gradient.nbytes)
            for one, into in zip(pieces, outgoing, strict=True)
        ]
        serves = rank < servers
        arrived: dict[int, Array] = {}
        for distance in range(1, size):
            server, worker = (rank + distance) % size, (rank - distance) % size
            inbox = stack.enter_context(comm.scratch(bounds[rank], empty)) if serves else empty
            message = outgoing[server][: lengths[server]] if server < servers else None
            arrived[worker] = await _round(comm, message, server, inbox if serves else None, worker)
        answer = empty
        if serves:
            arrived[rank] = outgoing[rank][: lengths[rank]]
            answer = await _answer(comm, courier, pieces[rank], arrived, answers, stack)
        for distance in range(1, size):
            worker, server = (rank + distance) % size, (rank - distance) % size
            inbox = empty
            if server < servers:
                inbox = stack.enter_context(comm.scratch(answers.bound(pieces[server]), empty))
            message = answer if serves else None
            came = await _round(comm, message, worker, inbox if server < servers else None, server)
            if server < servers:
                decode = partial(answers.decode, pieces[server], came, server)
                await comm.apply("decode", decode, pieces[server].gradient.nbytes)
        if serves:
            decode = partial(answers.decode, pieces[rank], answer, rank)
            await comm.apply("decode", decode, pieces[rank].gradient.nbytes)


async def _answer(
    comm: Comm, courier: Courier, shard: Piece, arrived: dict[int, Array], answers: Answers, stack: ExitStack
) -> Array:
    """Return the message of the sum of a shard."""
    total = shard.gradient

    def decode() -> None:
        if type(total) is not Phantom:
            total[:] = 0
        for sender in range(comm.size):
            courier.decode(shard.span, arrived[sender], sender, total)

    messages = list(arrived.values())
    await comm.apply("decode", decode, total.nbytes + courier.touched_bytes(total, messages))
    into = stack.enter_context(comm.scratch(answers.bound(shard), no_bytes(total)))
    length = await comm.apply("encode", partial(answers.encode, shard, into), 2 * total.nbytes)
    return into[:length]


async def _round(comm: Comm, message: Array | None, dest: int, inbox: Array | None, source: int) -> Array:
    """Send a message, receive one, or both at once; return what arrived."""
    if message is not None and inbox is not None:
        status = await comm.exchange(message, dest, inbox, source)
    elif inbox is not None:
        status = await comm.recv(inbox, source, tag=0)
    else:
        if message is not None:
            await comm.send(message, dest)
        return np.empty(0, np.uint8)
    return inbox[: status.count]


def shards(span: slice, servers: int, tensors: Sequence[Tensor] | None) -> list[slice]:
    """Cut ``span`` into ``servers`` parts, counted from its start; between ``tensors`` only, unless None."""
    size = span.stop - span.start
    ends = [size * (number + 1) // servers for number in range(servers)]
    if tensors is not None:
        edges = [
            0,
            *(one.span.stop - span.start for one in tensors if span.start < one.span.stop <= span.stop),
            size,
        ]
        ends = [min(edges, key=lambda edge: (abs(edge - end), edge)) for end in ends[:-1]] + [size]
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
