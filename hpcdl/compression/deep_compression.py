"""Deep Compression: prune, cluster, and code by Huffman (Han et al. 2016)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.compression.codes.huffman import Huffman
from hpcdl.compression.parts.checks import check_finite, check_values
from hpcdl.compression.parts.clusters import clusters_of, nearest
from hpcdl.compression.parts.sections import Reader, Writer, most_bytes
from hpcdl.compression.parts.segments import tensors
from hpcdl.compression.parts.traits import Compression

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Bytes, Layout
    from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(title="Han 2016")
MOST_CLUSTERS: Final = 256
COUNT: Final = np.dtype("<u4")
"""Type of the number of entries that pruning leaves."""


class DeepCompression:
    """The largest entries of each tensor, rounded to the centroids of clusters.

    - ``sparsity``: share of a tensor's entries that are not sent: the smallest, and zeros. 0: all are sent.
    - ``clusters``: by k-means from centroids at equal distances between the least and the largest entry.
    - ``huffman``: code numbers of clusters and gaps between positions; otherwise numbers have a fixed length and
      positions are a bitmap.

    A tensor's message has the number of entries that pruning leaves, the centroids, the numbers of the entries'
    clusters, and positions. A tensor with no more entries than clusters is sent as it is. Without pruning and
    Huffman, 16 weights in 4 clusters take 16 x 2 + 4 x 32 bits: 3.2 times less (section 3).

    A training compresses gradients, updates or gossip by it. No strategy fetches or broadcasts parameters by it,
    because gradients would be those of rounded parameters. The bytes of such a broadcast are those that
    :meth:`encode` returns for the parameters: of LeNet-5 with the default settings over 30 times fewer than dense.
    A message of decoded parameters decodes to the same numbers.
    """

    def __init__(self, layout: Layout, *, sparsity: float = 0.9, clusters: int = 16, huffman: bool = True) -> None:
        if not 0 <= sparsity < 1:
            raise ValueError(f"sparsity is {sparsity}, not at least 0 and below 1")
        if not 2 <= clusters <= MOST_CLUSTERS:
            raise ValueError(f"clusters is {clusters}, not 2 to {MOST_CLUSTERS}")
        self.state: dict[str, Array] = {}
        self._sparsity, self._clusters = sparsity, clusters
        self._bits = (clusters - 1).bit_length()
        self._huffman = Huffman() if huffman else None
        self._dtype = np.dtype(layout.dtype)
        self._segments = tensors(layout)

    def bound(self, span: slice) -> int:
        """Return the most bytes of a message: nothing is pruned."""
        return sum(map(self._most, np.diff(self._segments.cuts(span)).tolist()))

    def expected(self, span: slice) -> int | None:
        """Return the bytes of a message; None with pruning or Huffman's code: they depend on the values."""
        return None if self._sparsity or self._huffman else self.bound(span)

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:  # noqa: ARG002
        """See :class:`hpcdl.compression.parts.protocol.Encoder`."""
        check_finite(np.isfinite(vector).all())
        writer = Writer(wire, self._huffman)
        cuts = self._segments.cuts(span)
        for start, stop in pairwise(cuts.tolist()):
            self._encode(vector[start:stop], writer)
        return writer.used

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        """See :class:`hpcdl.compression.parts.protocol.Encoder`. After a ValueError ``into`` has no meaning."""
        reader = Reader(message, self._huffman)
        cuts = self._segments.cuts(span)
        for start, stop in pairwise(cuts.tolist()):
            self._decode(reader, into[start:stop])
        reader.end()

    def _most(self, size: int) -> int:
        """Return the most bytes of a tensor of ``size`` entries."""
        if size <= self._clusters:
            return size * self._dtype.itemsize
        numbers = most_bytes(size, size * (self._clusters - 1), self._bits, self._huffman)
        pruned = COUNT.itemsize + most_bytes(size, size, 1, self._huffman) if self._sparsity else 0
        return self._clusters * self._dtype.itemsize + numbers + pruned

    def _encode(self, part: Array, writer: Writer) -> None:
        if len(part) <= self._clusters:
            writer.raw(part)
            part[:] = 0
            return
        positions = np.arange(len(part))
        if self._sparsity:
            positions = largest(part, self._sparsity)
            writer.raw(np.array([len(positions)], COUNT))
        if not len(positions):
            return
        values = part[positions]
        centroids = clusters_of(values, self._clusters)
        numbers = nearest(values, centroids)
        writer.raw(centroids)
        writer.integers(numbers, self._bits)
        if self._sparsity:
            writer.positions(positions, len(part))
        part[positions] = values - centroids[numbers]

    def _decode(self, reader: Reader, into: Array) -> None:
        if len(into) <= self._clusters:
            values = reader.raw(len(into), self._dtype)
            check_values(np.isfinite(values))
            into += values
            return
        count = int(reader.raw(1, COUNT)[0]) if self._sparsity else len(into)
        check_values(np.array(count <= len(into)))
        if not count:
            return
        centroids = reader.raw(self._clusters, self._dtype)
        numbers = reader.integers(count, self._bits)
        check_values(np.isfinite(centroids) & (numbers.max() < self._clusters))
        into[reader.positions(count, len(into)) if self._sparsity else slice(None)] += centroids[numbers]


def largest(part: Array, sparsity: float) -> Array:
    """Return the positions, rising, of the entries that pruning leaves: the largest, and none that is zero.

    All entries as large as the smallest of these are left too.
    """
    magnitudes = np.abs(part)
    pruned = int(sparsity * len(part))
    threshold = np.partition(magnitudes, pruned)[pruned]
    return np.flatnonzero((magnitudes >= threshold) & (magnitudes > 0))
