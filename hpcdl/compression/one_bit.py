"""1-bit SGD: one bit per entry and two values per column of a weight matrix (Seide et al. 2014)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.compression.parts.checks import check_finite, check_length, check_padding, check_values
from hpcdl.compression.parts.device import kernels
from hpcdl.compression.parts.segments import rows
from hpcdl.compression.parts.traits import Compression

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Bytes, Layout
    from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(both_ways=True, on_device=True, title="Seide 2014")


class OneBit:
    """One bit per entry: below zero or not; two values per column: the means of those entries.

    A column of the paper's matrices (W^T v) has all weights of one output, as a row has here; a convolution's
    kernel counts as a column, and a vector as one. A message has both values of each column, or of its part within
    the span, then the bits. A server quantises the sum again, with a residual of its own.
    """

    def __init__(self, layout: Layout) -> None:
        self._kernels = kernels(layout.device, "two_values")
        self.state: dict[str, Array] = {}
        self._dtype = np.dtype(layout.dtype)
        self._segments = rows(layout)

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
        counts = np.stack([totals[:, 2], np.diff(cuts) - totals[:, 2]], axis=1)
        values = (totals[:, :2] / np.maximum(counts, 1)).astype(self._dtype)
        wire[:header] = values.reshape(-1).view(np.uint8)
        self._kernels.encode(vector, cuts, values, wire[header:length])
        return length

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        """See :class:`hpcdl.compression.parts.protocol.Encoder`."""
        header = self._header(span)
        check_length(message, self.bound(span))
        check_padding(message, len(into))
        values = message[:header].copy().view(self._dtype).reshape(-1, 2)
        check_values(np.isfinite(values) & (values * [-1, 1] >= 0))
        self._kernels.decode(message[header:], self._segments.cuts(span), values, into)

    def _header(self, span: slice) -> int:
        return self._segments.count(span) * 2 * self._dtype.itemsize
