"""QSGD: random levels of each entry's share in a bucket's norm, Elias-coded (Alistarh et al. 2017)."""

from typing import Final

import numpy as np

from hpcdl.compression.parts.code import padded
from hpcdl.compression.parts.protocol import Bytes, Compression, Layout, check_finite, check_values, kernels
from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(error_feedback=False, title="Alistarh 2017")
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
        self._kernels, self._codes = kernels(None, "levels"), kernels(None, "integer_codes")
        self._key = kernels(None, "draws").key
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
        check_finite(quantise(vector, self._bucket, self._levels, norms, symbols, stream, span.start))
        wire[:header] = norms.view(np.uint8)
        return header + int(self._codes.encode_elias(symbols, wire[header:], False))

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        header = self._header(span)
        check_values(len(message) >= header)
        norms, symbols = message[:header].copy().view(self._dtype), np.empty(len(into), np.uint32)
        check_values(np.isfinite(norms) & (norms >= 0))
        body = message[header:]
        check_values(self._codes.decode_elias(padded(body), len(body), False, symbols))
        check_values(self._kernels.add(symbols, self._bucket, self._levels, norms, into))

    def _header(self, span: slice) -> int:
        return -(-int(span.stop - span.start) // self._bucket) * self._dtype.itemsize
