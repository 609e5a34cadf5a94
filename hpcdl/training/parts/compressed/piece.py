"""Part of a gradient in one exchange, and its messages."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from hpcdl.aggregation.parts.messages import HEADER, opened, padded, seal
from hpcdl.compression.parts.protocol import Encoder, SharedScalers, Tensor
from hpcdl.fabric.comm import Array, Comm


class Piece(NamedTuple):
    """Part of the gradient that ranks sum in one exchange."""

    span: slice
    gradient: Array
    """This rank's values, replaced by the sum, (span length,)."""
    residual: Array | None
    """Values that earlier exchanges have not sent, (span length,); None without error feedback."""
    step: int
    """Number of earlier exchanges of this part."""

    def part(self, begin: int, end: int) -> "Piece":
        """Return the elements ``begin`` to ``end`` of this piece."""
        residual = None if self.residual is None else self.residual[begin:end]
        span = slice(self.span.start + begin, self.span.start + end)
        return Piece(span, self.gradient[begin:end], residual, self.step)

    def add_residual(self) -> Array:
        """Return the vector to encode: gradient plus residual, in the residual's memory if there is one."""
        if self.residual is None:
            return self.gradient
        residual = self.residual
        residual += self.gradient
        return residual


class MessageCodec:
    """Writes and reads the messages of one encoder."""

    def __init__(self, encoder: Encoder, tensors: Sequence[Tensor], rank: int, *, sparse: bool) -> None:
        self.encoder = encoder
        self.sharing = encoder if isinstance(encoder, SharedScalers) else None
        """The encoder, if ranks share its scalers when servers sum."""
        self._sparse = sparse
        self._tensors = tensors
        self._rank = rank

    def bound(self, span: slice) -> int:
        return padded(self.encoder.bound(span))

    def encode(self, piece: Piece, into: Array) -> int:
        """Write the message of a piece to ``into``; the residual keeps what is not sent. Returns the bytes.

        Raises FloatingPointError, naming step and tensor, for a value that is infinite or not a number.
        """
        vector = piece.add_residual()
        room = into[HEADER : self.bound(piece.span)]
        try:
            content = self.encoder.encode(piece.span, vector, room, piece.step)
        except FloatingPointError as error:
            raise refused(error, piece, vector, self._tensors) from None
        return seal(into, content, self._rank)

    def scalers(self, piece: Piece) -> Array:
        """Return this rank's scalers of a piece, for an encoder that shares them; raises as :meth:`encode`."""
        assert self.sharing
        vector = piece.gradient if piece.residual is None else piece.gradient + piece.residual
        try:
            return self.sharing.scalers(piece.span, vector)
        except FloatingPointError as error:
            raise refused(error, piece, vector, self._tensors) from None

    def decode(self, span: slice, message: Array, sender: int, into: Array) -> None:
        """Add the message of rank ``sender`` to ``into``. Raises ValueError, naming it, for a corrupt message."""
        content = opened(message, sender)
        try:
            self.encoder.decode(span, content, into)
        except ValueError as error:
            raise ValueError(f"message of rank {sender}: {error}") from None

    async def write(self, comm: Comm, piece: Piece, into: Array) -> Array:
        """Call :meth:`encode` and return the message, a part of ``into``."""
        return into[: await comm.apply("encode", partial(self.encode, piece, into), 2 * piece.gradient.nbytes)]

    async def add(
        self,
        comm: Comm,
        span: slice,
        messages: Mapping[int, Array],
        into: Array,
        *,
        base: Array | float | None = None,
    ) -> None:
        """Add messages, by sender, to ``into``, first set to ``base`` if given. Raises as :meth:`decode`."""

        def decode() -> None:
            if base is not None:
                into[:] = base
            for sender, message in messages.items():
                self.decode(span, message, sender, into)

        # decoding writes the entries if they are few, else the whole vector
        written = sum(map(len, messages.values())) if self._sparse else len(messages) * into.nbytes
        await comm.apply("decode", decode, written + (0 if base is None else into.nbytes))


def refused(
    error: FloatingPointError, piece: Piece, vector: Array, tensors: Sequence[Tensor]
) -> FloatingPointError:
    """Return an error that names the step, and the tensor of the first value that is not finite."""
    wrong = np.flatnonzero(~np.isfinite(vector))
    place = piece.span.start + (int(wrong[0]) if len(wrong) else 0)
    names = [tensor.name for tensor in tensors if tensor.span.start <= place < tensor.span.stop]
    where = names[0] if len(wrong) and names else f"elements {piece.span.start} to {piece.span.stop}"
    return FloatingPointError(f"step {piece.step}: gradient of {where}: {error}")
