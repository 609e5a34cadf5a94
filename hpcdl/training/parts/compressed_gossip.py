"""Compressed gossip of parameters: CHOCO-SGD (Koloskova et al. 2019)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.aggregation.parts.messages import no_bytes
from hpcdl.fabric.vectors import assign
from hpcdl.training.parts.compressed.piece import Piece

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.training.parts.compressed.compressed import Compressed
    from hpcdl.training.parts.session import Session


class CompressedGossip:
    """A rank's encoder, and copies of its own and its neighbours' parameters.

    A rank sends the difference between its parameters and their copy, encoded; the copy keeps the error for the
    next message. All ranks decode the same messages, so that the copies of one rank's parameters are equal, bit
    for bit. ``weights``: this rank's row of the mixing matrix.
    """

    def __init__(self, comm: Comm, session: Session, compressed: Compressed, weights: Mapping[int, float]) -> None:
        self._compressed = compressed
        self._courier = compressed.courier_of_differences(comm.rank, comm.size)
        self._span = slice(0, session.replica.parameters.size)
        self._weights = {other: weights[other] for other in sorted(weights) if other != comm.rank}
        self._own = session.vector("own copy")
        self._copies = {other: session.vector(f"copy of rank {other}") for other in self._weights}

    async def mix(self, comm: Comm, x: Array, mixed: Array, addend: Array, step: int) -> None:
        """Set ``mixed`` to ``x`` + sum over neighbours of weight x (their copy - own copy).

        The first ``warmup_steps`` messages are dense. ``addend`` loses its values. Raises FloatingPointError,
        naming step and tensor, for a value that is infinite or not a number, and ValueError, naming the sender,
        for a corrupt message.
        """
        if step < self._compressed.plan.settings.warmup_steps:
            await self._send_parameters(comm, x)
        else:
            await self._send_differences(comm, x, mixed, step)
        await comm.apply("mix", partial(assign, mixed, x), x.nbytes)
        for other, copy in self._copies.items():
            await comm.apply("mix", partial(self._weigh, addend, copy, self._weights[other]), 2 * x.nbytes)
            await comm.add(mixed, addend)

    async def _send_parameters(self, comm: Comm, x: Array) -> None:
        """Send ``x`` to the neighbours and replace all copies."""
        sends = [comm.start(comm.send(x, other), shared_tags=True) for other in self._copies]
        await comm.apply("copy", partial(assign, self._own, x), x.nbytes)
        for other, copy in self._copies.items():
            await comm.recv(copy, other, 0)
        for sent in sends:
            await sent
        self._compressed.warmup_bytes += len(sends) * x.nbytes

    async def _send_differences(self, comm: Comm, x: Array, difference: Array, step: int) -> None:
        """Send ``x`` - own copy, encoded, to the neighbours and add all messages to the copies."""
        courier, span = self._courier, self._span

        def encode() -> int:
            np.subtract(x, self._own, out=difference)
            return courier.encode(Piece(span, difference, None, step), outgoing)

        async def decode(message: Array, sender: int, copy: Array) -> None:
            add = partial(courier.decode, span, message, sender, copy)
            await comm.apply("decode", add, courier.touched_bytes(copy, [message]))

        bound, empty = courier.bound(span), no_bytes(x)
        with comm.scratch(bound, empty) as outgoing, comm.scratch(bound, empty) as incoming:
            length = await comm.apply("encode", encode, 3 * x.nbytes)
            message = outgoing[:length]
            sends = [comm.start(comm.send(message, other), shared_tags=True) for other in self._copies]
            await decode(message, comm.rank, self._own)
            for other, copy in self._copies.items():
                status = await comm.recv(incoming, other, 0)
                await decode(incoming[: status.count], other, copy)
            for sent in sends:
                await sent
        self._compressed.saved_bytes += len(sends) * (x.nbytes - length)

    def _weigh(self, addend: Array, copy: Array, weight: float) -> None:
        np.subtract(copy, self._own, out=addend)
        addend *= weight
