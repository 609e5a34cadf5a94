"""QSGD: random levels of each entry's share in a bucket's norm, Elias-coded (Alistarh et al. 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.compression.parts.protocol import Compression, check_finite, check_values

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Bytes, Layout
    from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(error_feedback=False, title="Alistarh 2017")


class QSGD:
    """Entries become +-norm x level / s, levels 0 to s, rounded up or down at random.

    ``levels``: s. ``bucket``: n entries with a common Euclidean norm. The mean of the message is the gradient, and
    the variance of a bucket at most min(n / s^2, sqrt(n) / s) x norm^2 (lemma 3.1).

    A message has the norms, then the levels in Elias's gamma code and their signs, 2.6 bits per entry of a normal
    distribution with the defaults. Buckets begin at the start of the span.
    """

    def __init__(self, layout: Layout, *, levels: int = 16, bucket: int = 512) -> None:
        from hpcdl.compression.kernels import draws  # late: listing compressors must not load numba
        from hpcdl.compression.kernels import levels as kernels

        if not 1 <= levels <= kernels.MAX_LEVELS:
            raise ValueError(f"levels is {levels}, not 1 to {kernels.MAX_LEVELS}")
        if bucket < 1:
            raise ValueError(f"bucket is {bucket}, below 1")
        self.state: dict[str, Array] = {}
        self.variance = min(bucket / levels**2, bucket**0.5 / levels)
        self._kernels, self._key = kernels, draws.key
        self._levels, self._bucket = levels, bucket
        self._seed, self._rank = layout.seed, layout.rank
        self._dtype = np.dtype(layout.dtype)
        self._code = kernels.words_of(levels)
        self._table = kernels.lookup(*self._code)

    def bound(self, span: slice) -> int:
        """Return the most bytes of a message: all entries at the highest level."""
        bits = int(span.stop - span.start) * int(self._code[1].max())
        return self._header(span) + (bits + 7) // 8

    def expected(self, span: slice) -> None:
        """Return None: the bytes of a message depend on the values."""

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:
        """See :class:`hpcdl.compression.parts.protocol.Encoder`."""
        header = self._header(span)
        norms = np.empty(header // self._dtype.itemsize, self._dtype)
        stream = self._key(self._seed, self._rank, step)
        used = self._kernels.encode(vector, self._bucket, self._code, norms, wire[header:], stream, span.start)
        check_finite(used >= 0)
        wire[:header] = norms.view(np.uint8)
        return header + int(used)

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        """See :class:`hpcdl.compression.parts.protocol.Encoder`. After a ValueError ``into`` has no meaning."""
        header = self._header(span)
        check_values(np.array(len(message) >= header))
        norms = message[:header].copy().view(self._dtype)
        check_values(np.isfinite(norms) & (norms >= 0))
        decode = self._kernels.decode
        check_values(decode(message[header:], self._bucket, self._levels, self._table, norms, into))

    def _header(self, span: slice) -> int:
        return -(-int(span.stop - span.start) // self._bucket) * self._dtype.itemsize
