"""EF-signSGD: signs times the mean magnitude, with error feedback (Karimireddy et al. 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.compression.parts.checks import check_finite, check_length, check_padding, check_values
from hpcdl.compression.parts.device import kernels
from hpcdl.compression.parts.segments import tensors
from hpcdl.compression.parts.traits import Compression

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
        self._kernels = kernels(layout.device, "two_values")
        self.state: dict[str, Array] = {}
        self._dtype = np.dtype(layout.dtype)
        self._segments = tensors(layout)

    def bound(self, span: slice) -> int:
        """Return the bytes of a message."""
        return self._header(span) + int(span.stop - span.start + 7) // 8

    def expected(self, span: slice) -> int:
        """Return the bytes of a message."""
        return self.bound(span)

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:  # noqa: ARG002
        """See :class:`hpcdl.compression.parts.protocol.Encoder`."""
        cuts, header, length = self._segments.cuts(span), self._header(span), self.bound(span)
        totals = np.empty((len(cuts) - 1, 3))
        self._kernels.sums(vector, cuts, totals)
        check_finite(np.isfinite(totals).all())
        scales = ((totals[:, 1] - totals[:, 0]) / np.diff(cuts)).astype(self._dtype)
        wire[:header] = scales.view(np.uint8)
        self._kernels.encode(vector, cuts, _both(scales), wire[header:length])
        return length

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        """See :class:`hpcdl.compression.parts.protocol.Encoder`."""
        header = self._header(span)
        check_length(message, self.bound(span))
        check_padding(message, len(into))
        scales = message[:header].copy().view(self._dtype)
        check_values(np.isfinite(scales) & (scales >= 0))
        self._kernels.decode(message[header:], self._segments.cuts(span), _both(scales), into)

    def _header(self, span: slice) -> int:
        return self._segments.count(span) * self._dtype.itemsize


def _both(scales: Array) -> Array:
    """Return the values of negative and of other entries, (segments, 2)."""
    return np.stack([-scales, scales], axis=1)
