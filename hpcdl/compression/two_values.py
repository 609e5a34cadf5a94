"""One bit per entry: signs alone, with a majority vote (signSGD), or with values (1-bit SGD, EF-signSGD)."""

from collections.abc import Callable
from typing import Final

import numpy as np

from hpcdl.compression.parts import protocol
from hpcdl.compression.parts.protocol import Bytes, Compression, FixedLength, Layout
from hpcdl.fabric.comm import Array


class Sign(FixedLength):
    """Signs of the entries, not scaled: w -= rate * vote, so rates are about those of Adam.

    A server sums the votes and encodes the sum again: the majority vote (Bernstein et al. 2018), at 2 bits per
    entry both ways. An allgather yields the sum of the votes, -p to p.

    Zeros and ties are + and - in turn: (-1)^(position + step), on all ranks alike, so that a weight without
    gradient stays where it is.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__("two_values", layout, protocol.tensors(layout), numbers=0, bits=1)

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:
        length = self.bound(span)
        protocol.check_finite(self._kernels.encode_signs(vector, wire[:length], (span.start + step) & 1))
        return length

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        self._kernels.decode_signs(self._opened(span, message)[1], into)


class TwoValues(FixedLength):
    """Values of each segment, or of its part within the span, then one bit per entry, set for negative ones.

    ``values`` (2 or 1): values per segment in a message, those of negative and of other entries, or their common
    magnitude. ``choose(totals, lengths)`` returns them, (segments, values), from the totals of
    :func:`hpcdl.compression.kernels.two_values.sums` and the segments' lengths.
    """

    def __init__(
        self, segments: protocol.Segments, layout: Layout, values: int, choose: Callable[[Array, Array], Array]
    ) -> None:
        super().__init__("two_values", layout, segments, numbers=values, bits=1)
        self._choose = choose

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:  # noqa: ARG002
        cuts, header, length = self.segments.cuts(span), self._header(span), self.bound(span)
        totals = np.empty((len(cuts) - 1, 3))
        self._kernels.sums(vector, cuts, totals)
        protocol.check_finite(np.isfinite(totals).all())
        values = self._choose(totals, np.diff(cuts)).astype(self._dtype)
        wire[:header] = values.reshape(-1).view(np.uint8)
        self._kernels.encode(vector, cuts, _both(values), wire[header:length])
        return length

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        numbers, packed = self._opened(span, message)
        values = _both(numbers.reshape(-1, self._numbers))
        protocol.check_values(np.isfinite(values) & (values * [-1, 1] >= 0))
        self._kernels.decode(packed, self.segments.cuts(span), values, into)


def _both(values: Array) -> Array:
    return values if values.shape[1] == 2 else np.concatenate([-values, values], axis=1)


class OneBit(TwoValues):
    """One bit per entry: below zero or not; two values per column: the means of those entries.

    A column of the paper's matrices (W^T v) has all weights of one output, as a row has here; a convolution's
    kernel counts as a column, and a vector as one. A message has both values of each column, or of its part within
    the span, then the bits. A server quantises the sum again, with a residual of its own.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(protocol.rows(layout), layout, 2, _means)


def _means(totals: Array, lengths: Array) -> Array:
    counts = np.stack([totals[:, 2], lengths - totals[:, 2]], axis=1)
    means: Array = totals[:, :2] / np.maximum(counts, 1)
    return means


class EFSign(TwoValues):
    """Signs times the mean magnitude of each tensor, with error feedback; a zero counts as positive.

    A message has one scale per tensor, or per part of a tensor within the span, and one bit per entry. A server
    encodes the sum again (Zheng et al. 2019).
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(
            protocol.tensors(layout), layout, 1, lambda sums, n: (sums[:, 1:2] - sums[:, :1]) / n[:, None]
        )


OFFERS: Final = {"sign": Sign, "one_bit": OneBit, "ef_sign": EFSign}
TRAITS: Final = {
    "sign": Compression(
        error_feedback=False,
        both_ways=True,
        on_device=True,
        scaled=False,
        sends_zeros=False,
        title="Bernstein 2018",
    ),
    "one_bit": Compression(both_ways=True, sends_zeros=False, on_device=True, title="Seide 2014"),
    "ef_sign": Compression(both_ways=True, sends_zeros=False, on_device=True, title="Karimireddy 2019"),
}
