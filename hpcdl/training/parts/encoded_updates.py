"""Updates of parameters as messages of a compressor, from one rank to all others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.training.parts.compressed.piece import Piece

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.training.parts.compressed.compressed import Compressed
    from hpcdl.training.parts.session import Session


class EncodedUpdates:
    """Encoder and buffers of one rank's updates, and of those that it receives."""

    def __init__(self, comm: Comm, session: Session, compressed: Compressed) -> None:
        self._compressed = compressed
        self._courier = compressed.courier(comm.rank, comm.size, sends=True)
        self._span = slice(0, session.replica.parameters.size)
        elements = -(-self._courier.bound(self._span) // session.replica.parameters.itemsize)
        self._outgoing, self.incoming = (
            session.vector(f"{way} message", elements).view(np.uint8) for way in ("outgoing", "incoming")
        )

    def is_dense(self, number: int) -> bool:
        """Return True if the update ``number`` of a rank is not encoded."""
        return number < self._compressed.plan.settings.warmup_steps

    def count(self, dense: int, sent: int, number: int, receivers: int) -> None:
        """Count the bytes that the update ``number`` took, and those that it would have taken dense."""
        if self.is_dense(number):
            self._compressed.warmup_bytes += receivers * sent
        else:
            self._compressed.saved_bytes += receivers * (dense - sent)

    async def replace(self, comm: Comm, x: Array, before: Array, number: int) -> Array:
        """Replace the update ``x`` by ``before`` + the decoded message; return the message.

        The residual keeps the rest. Raises FloatingPointError, naming step and tensor, for a value that is
        infinite or not a number.
        """
        piece = Piece(self._span, x, self._compressed.residual, number)
        await self._compressed.before(comm, number, x)
        length = await comm.apply("encode", partial(self._courier.encode, piece, self._outgoing), 2 * x.nbytes)
        await self._compressed.after(comm, self._span, number)
        message = self._outgoing[:length]

        def change() -> None:
            x[:] = before
            self._courier.decode(self._span, message, comm.rank, x)

        await comm.apply("decode", change, x.nbytes + self._courier.touched_bytes(x, [message]))
        return message

    async def add(self, comm: Comm, message: Array, sender: int, into: Array) -> None:
        """Add the update in a message to ``into``. Raises ValueError, naming the sender, for a corrupt one."""
        decode = partial(self._courier.decode, self._span, message, sender, into)
        await comm.apply("decode", decode, self._courier.touched_bytes(into, [message]))
