"""signSGD with majority vote: one bit per entry each way (Bernstein et al. 2018)."""

from __future__ import annotations

from typing import Final

from hpcdl.compression.parts.protocol import (
    Bytes,
    Compression,
    FixedLength,
    Layout,
    check_finite,
    check_length,
    check_padding,
    kernels,
)
from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(
    error_feedback=False,
    both_ways=True,
    on_device=True,
    scaled=False,
    sends_zeros=False,
    title="Bernstein 2018",
)


class Sign(FixedLength):
    """Signs of the entries, not scaled: w -= rate * vote, so rates are about those of Adam.

    A server sums the votes and encodes the sum again: the majority vote, +-1, at 2 bits per entry both ways. An
    allgather yields the sum of the votes, -p to p.

    Zeros and ties are + and - in turn: (-1)^(position + step), on all ranks alike, so that a weight without
    gradient stays where it is.
    """

    def __init__(self, layout: Layout) -> None:
        self._kernels = kernels(layout.device, "signs")
        self.state: dict[str, Array] = {}

    def bound(self, span: slice) -> int:
        """Return the bytes of a message: an eighth of the entries."""
        return int(span.stop - span.start + 7) // 8

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:
        length = self.bound(span)
        check_finite(self._kernels.encode(vector, wire[:length], (span.start + step) & 1))
        return length

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        check_length(message, self.bound(span))
        check_padding(message, len(into))
        self._kernels.decode(message, into)
