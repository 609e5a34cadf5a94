"""EF-signSGD: signs times the mean magnitude, with error feedback (Karimireddy et al. 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.compression.parts.segments import tensors
from hpcdl.compression.parts.traits import Compression
from hpcdl.compression.parts.two_values import TwoValueMessages

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Bytes, Layout
    from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(both_ways=True, on_device=True, title="Karimireddy 2019")


class EFSign:
    """Signs, times the mean magnitude of each tensor; a zero counts as positive.

    A message has one scale per tensor, or per part of a tensor within the span, and one bit per entry. A server
    encodes the sum again (Zheng et al. 2019).
    """

    def __init__(self, layout: Layout) -> None:
        self.state: dict[str, Array] = {}
        self._messages = TwoValueMessages(tensors(layout), layout, 1, _magnitudes)

    def bound(self, span: slice) -> int:
        """Return the bytes of a message."""
        return self._messages.bound(span)

    def expected(self, span: slice) -> int:
        """Return the bytes of a message."""
        return self._messages.bound(span)

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:  # noqa: ARG002
        """See :class:`hpcdl.compression.parts.protocol.Encoder`."""
        return self._messages.encode(span, vector, wire)

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        """See :class:`hpcdl.compression.parts.protocol.Encoder`."""
        self._messages.decode(span, message, into)


def _magnitudes(totals: Array, lengths: Array) -> Array:
    """Return the mean magnitude of each segment, (segments, 1)."""
    return ((totals[:, 1] - totals[:, 0]) / lengths)[:, None]
