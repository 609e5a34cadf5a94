"""TernGrad: random ternary levels times the largest magnitude (Wen et al. 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.compression.parts.checks import check_finite, check_length, check_padding, check_values
from hpcdl.compression.parts.device import kernels
from hpcdl.compression.parts.protocol import Compression
from hpcdl.compression.parts.segments import tensors

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Bytes, Layout
    from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(error_feedback=False, on_device=True, title="Wen 2017")
_PLUS_AND_MINUS: Final = 0b01010101


class TernGrad:
    """Entries become -s, 0 or +s at random, 2 bits each; s is the largest magnitude of a tensor.

    ``clip``: magnitudes are cut at this many standard deviations first, taken about zero; 0: never, and then the
    mean of the message is the gradient, and an entry's variance is s |x| - x^2.

    Each rank and each tensor, or part of one within the span, has its own scaler: the paper's ranks share the
    largest, which takes one more exchange and makes levels coarser.
    """

    def __init__(self, layout: Layout, *, clip: float = 2.5) -> None:
        if clip < 0:
            raise ValueError(f"clip is {clip}, below 0")
        from hpcdl.compression.kernels import draws  # late: listing compressors must not load numba

        self._kernels = kernels(layout.device, "ternary")
        self._key = draws.key
        self.state: dict[str, Array] = {}
        self._clip = clip
        self._seed, self._rank = layout.seed, layout.rank
        self._dtype = np.dtype(layout.dtype)
        self._segments = tensors(layout)

    def bound(self, span: slice) -> int:
        """Return the bytes of a message."""
        return self._header(span) + int(span.stop - span.start + 3) // 4

    def expected(self, span: slice) -> int:
        """Return the bytes of a message."""
        return self.bound(span)

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:
        """See :class:`hpcdl.compression.parts.protocol.Encoder`."""
        cuts, header, length = self._segments.cuts(span), self._header(span), self.bound(span)
        totals = np.empty((len(cuts) - 1, 2))
        self._kernels.moments(vector, cuts, totals)
        check_finite(np.isfinite(totals).all())
        scalers = totals[:, 1]
        if self._clip:
            scalers = np.minimum(scalers, self._clip * np.sqrt(totals[:, 0] / np.diff(cuts)))
        scalers = scalers.astype(self._dtype)
        wire[:header] = scalers.view(np.uint8)
        stream = self._key(self._seed, self._rank, step)
        self._kernels.encode(vector, cuts, scalers, wire[header:length], stream, span.start)
        return length

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        """See :class:`hpcdl.compression.parts.protocol.Encoder`."""
        header = self._header(span)
        check_length(message, self.bound(span))
        check_padding(message, 2 * len(into))
        scalers = message[:header].copy().view(self._dtype)
        check_values(np.isfinite(scalers) & (scalers >= 0))
        packed = message[header:]
        check_values(packed & (packed >> 1) & _PLUS_AND_MINUS == 0)
        self._kernels.decode(packed, self._segments.cuts(span), scalers, into)

    def _header(self, span: slice) -> int:
        return self._segments.count(span) * self._dtype.itemsize
