"""Messages of the vectors that summable compressors make, for exchanges between pairs of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Bytes, PointToPoint
    from hpcdl.fabric.comm import Array

HEADER: Final = 8
"""Bytes of the step: a receiver draws the positions of that step."""


class VectorMessages:
    """An encoder: the step, then the one vector of a summable compressor.

    ``fed_back``: what is not sent is in a residual; without it :meth:`encode` leaves no meaning in its vector.
    """

    def __init__(self, compressor: PointToPoint, *, fed_back: bool) -> None:
        self.state = compressor.state
        self._compressor = compressor
        self._fed_back = fed_back

    def bound(self, span: slice) -> int:
        """See :class:`hpcdl.compression.parts.protocol.Encoder`."""
        return self.expected(span)

    def expected(self, span: slice) -> int:
        """See :class:`hpcdl.compression.parts.protocol.Encoder`."""
        size, dtype = self._vector(span)
        return HEADER + size * np.dtype(dtype).itemsize

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:
        """See :class:`hpcdl.compression.parts.protocol.Encoder`."""
        rounds = self._compressor.rounds(span, vector, vector if self._fed_back else None, step)
        length = self.expected(span)
        wire[:HEADER].view(np.uint64)[0] = step
        wire[HEADER:length] = np.asarray(next(rounds)).view(np.uint8)
        return length

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        """See :class:`hpcdl.compression.parts.protocol.Encoder`."""
        if len(message) != self.expected(span):
            raise ValueError(f"{len(message)} bytes, not {self.expected(span)}")
        _, dtype = self._vector(span)
        step = int(message[:HEADER].view(np.uint64)[0])
        values = np.empty_like(into)
        try:
            self._compressor.restore(span, message[HEADER:].view(dtype), values, step, fed_back=self._fed_back)
        except FloatingPointError:
            raise ValueError("message has a value that is not finite") from None
        into += values

    def _vector(self, span: slice) -> tuple[int, str]:
        ((size, dtype),) = self._compressor.lengths(span)
        return size, dtype
