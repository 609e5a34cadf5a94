"""Random quantisers: QSGD (Alistarh et al. 2017) and TernGrad (Wen et al. 2017)."""

from typing import Final

import numpy as np

from hpcdl.compression.parts import protocol
from hpcdl.compression.parts.protocol import Bytes, Compression, FixedLength, Layout, kernels
from hpcdl.fabric.comm import Array

MAX_LEVELS: Final = 1 << 16


class QSGD:
    """Entries become +-norm x level / s, levels 0 to s, rounded up or down at random.

    ``levels``: s. ``bucket``: n entries with a common Euclidean norm. The mean of the message is the gradient, and
    the variance of a bucket at most min(n / s^2, sqrt(n) / s) x norm^2 (lemma 3.1).

    A message has the norms, then levels and signs in Elias's gamma code, 2.2 bits per entry of a normal
    distribution with the defaults. Buckets begin at the start of the span.
    """

    def __init__(self, layout: Layout, *, levels: int = 16, bucket: int = 512) -> None:
        if not 1 <= levels <= MAX_LEVELS:
            raise ValueError(f"levels is {levels}, not 1 to {MAX_LEVELS}")
        if bucket < 1:
            raise ValueError(f"bucket is {bucket}, below 1")
        self.state: dict[str, Array] = {}
        self.variance = min(bucket / levels**2, bucket**0.5 / levels)
        self._kernels, self._codes = kernels(None, "random_levels"), kernels(None, "integer_codes")
        self._key = kernels(None, "reproducible").key
        self._levels, self._bucket = levels, bucket
        self._seed, self._rank = layout.seed, layout.rank
        self._dtype = np.dtype(layout.dtype)

    def bound(self, span: slice) -> int:
        """Return the most bytes of a message: all entries at the highest level."""
        bits = int(span.stop - span.start) * (2 * (2 * self._levels + 1).bit_length() - 1)
        return self._header(span) + (bits + 7) // 8

    def expected(self, span: slice) -> None:
        """Return None: the bytes of a message depend on the values."""

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:
        header = self._header(span)
        norms, symbols = np.empty(header // self._dtype.itemsize, self._dtype), np.empty(len(vector), np.uint32)
        stream = self._key(self._seed, self._rank, step)
        quantise = self._kernels.quantise
        protocol.check_finite(quantise(vector, self._bucket, self._levels, norms, symbols, stream, span.start))
        wire[:header] = norms.view(np.uint8)
        return header + int(self._codes.encode_elias(symbols, wire[header:], False))

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        header = self._header(span)
        protocol.check_values(len(message) >= header)
        norms, symbols = message[:header].copy().view(self._dtype), np.empty(len(into), np.uint32)
        protocol.check_values(np.isfinite(norms) & (norms >= 0))
        body = message[header:]
        protocol.check_values(self._codes.decode_elias(protocol.padded(body), len(body), False, symbols))
        protocol.check_values(self._kernels.add_levels(symbols, self._bucket, self._levels, norms, into))

    def _header(self, span: slice) -> int:
        return -(-int(span.stop - span.start) // self._bucket) * self._dtype.itemsize


_PLUS_AND_MINUS: Final = 0b01010101


class TernGrad(FixedLength):
    """Entries become -s, 0 or +s at random, 2 bits each; s is the largest magnitude of a tensor.

    ``clip``: magnitudes are cut at this many standard deviations first, taken about zero; 0: never, and then the
    mean of the message is the gradient, and an entry's variance is s |x| - x^2.

    Each tensor, or part of one within the span, has a scaler. If servers sum the messages, all ranks share the
    largest (section 3.3): a sum has the levels -p to p, and its message is exact, of ceil(log2(2p + 1)) bits per
    entry. Otherwise each rank has its own.
    """

    def __init__(self, layout: Layout, *, clip: float = 2.5) -> None:
        if clip < 0:
            raise ValueError(f"clip is {clip}, below 0")
        super().__init__("random_levels", layout, protocol.tensors(layout), numbers=1, bits=2)
        self._key = kernels(None, "reproducible").key
        self._clip = clip
        self._seed, self._rank = layout.seed, layout.rank
        self.layout = layout
        self.count = self.segments.count
        self.shared: dict[tuple[int, int], Array] = {}
        """Scalers of all ranks by the bounds of a span."""

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:
        cuts, header, length = self.segments.cuts(span), self._header(span), self.bound(span)
        scalers = self.shared[span.start, span.stop] if self.shared else self.scalers(span, vector)
        wire[:header] = scalers.view(np.uint8)
        stream = self._key(self._seed, self._rank, step)
        self._kernels.encode(vector, cuts, scalers, wire[header:length], stream, span.start)
        return length

    def scalers(self, span: slice, vector: Array) -> Array:
        cuts = self.segments.cuts(span)
        totals = np.empty((len(cuts) - 1, 2))
        self._kernels.moments(vector, cuts, totals)
        protocol.check_finite(np.isfinite(totals).all())
        scalers = totals[:, 1]
        if self._clip:
            scalers = np.minimum(scalers, self._clip * np.sqrt(totals[:, 0] / np.diff(cuts)))
        return scalers.astype(self._dtype)

    def share(self, span: slice, scalers: Array) -> None:
        protocol.check_values(np.isfinite(scalers) & (scalers >= 0))
        self.shared[span.start, span.stop] = scalers

    def of_sums(self) -> "SumsOfLevels":
        return SumsOfLevels(self)

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        scalers, packed = self._opened(span, message)
        protocol.check_values(np.isfinite(scalers) & (scalers >= 0))
        # 0 is zero, 1 plus, 2 minus; both bits set mean nothing
        protocol.check_values(packed & (packed >> 1) & _PLUS_AND_MINUS == 0)
        self._kernels.decode(packed, self.segments.cuts(span), scalers, into)


class SumsOfLevels:
    """Encoder of the sums of p ranks' messages with shared scalers: levels 0 to 2p, bit by bit."""

    def __init__(self, messages: TernGrad) -> None:
        self.state: dict[str, Array] = {}
        self._messages = messages
        self._ranks, self._device = messages.layout.ranks, messages.layout.device
        self._planes = (2 * self._ranks).bit_length()
        self._dtype = np.dtype(np.uint8 if self._planes <= 8 else np.uint32)

    def bound(self, span: slice) -> int:
        return self._planes * (int(span.stop - span.start + 7) // 8)

    expected = bound

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:  # noqa: ARG002
        levels = protocol.to_host(self._device, vector) / np.where((unit := self._units(span)) > 0, unit, 1)
        protocol.check_finite(np.isfinite(levels).all())
        numbers = (np.rint(levels) + self._ranks).astype(self._dtype)
        for plane, row in enumerate(self._rows(span, wire)):
            row[:] = np.packbits(numbers >> plane & 1)
        vector[:] = 0
        return self.bound(span)

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        protocol.check_length(message, self.bound(span))
        levels: Array = np.zeros(len(into), self._dtype)
        for plane, row in enumerate(self._rows(span, message)):
            levels |= np.unpackbits(row, count=len(into)).astype(self._dtype) << plane
        protocol.check_values(levels <= 2 * self._ranks)
        into += protocol.to_device(self._device, (levels.astype(into.dtype) - self._ranks) * self._units(span))

    def _rows(self, span: slice, message: Bytes) -> Bytes:
        return message[: self.bound(span)].reshape(self._planes, -1)

    def _units(self, span: slice) -> Array:
        """Return the scaler of each entry."""
        scalers, cuts = self._messages.shared[span.start, span.stop], self._messages.segments.cuts(span)
        return np.repeat(scalers, np.diff(cuts))


OFFERS: Final = {"qsgd": QSGD, "terngrad": TernGrad}
TRAITS: Final = {
    "qsgd": Compression(error_feedback=False, title="Alistarh 2017"),
    "terngrad": Compression(error_feedback=False, both_ways=True, on_device=True, title="Wen 2017"),
}
