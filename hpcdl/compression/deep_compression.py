"""Deep Compression: prune, cluster, and code by Huffman (Han et al. 2016)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.compression.codes.huffman import Huffman
from hpcdl.compression.parts.protocol import Compression, check_finite, check_padding, check_values, tensors

if TYPE_CHECKING:
    import numpy.typing as npt

    from hpcdl.compression.parts.code import Code
    from hpcdl.compression.parts.protocol import Bytes, Layout
    from hpcdl.fabric.comm import Array


MAX_ROUNDS: Final = 100
"""Rounds after which k-means stops, if it has not settled."""


def clusters_of(values: Array, clusters: int) -> Array:
    """Return the centroids, rising, (clusters,), of one or more finite ``values``, (n,).

    The first centroids are at equal distances from the least to the largest value (Deep Compression: Han et al.
    2016, section 3.2). A cluster without values keeps its centroid. No more distinct values than clusters are the
    centroids themselves.
    """
    ordered = np.sort(values)
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    if len(ends) <= clusters:
        return np.pad(ordered[ends], (0, clusters - len(ends)), mode="edge")
    low, high = float(ordered[0]), float(ordered[-1])
    share = np.linspace(0, 1, clusters)
    centroids = low * (1 - share) + high * share
    before = np.array([-1])
    for _ in range(MAX_ROUNDS):
        edges = np.searchsorted(ordered, _middles(centroids), side="right")
        if np.array_equal(edges, before):
            break
        before = edges
        bounds = [0, *edges.tolist(), len(ordered)]
        for number, (start, stop) in enumerate(pairwise(bounds)):
            if stop > start:
                centroids[number] = ordered[start:stop].mean(dtype=np.float64)
    return np.sort(centroids.astype(values.dtype))


def nearest(values: Array, centroids: Array) -> Array:
    """Return the number of the centroid nearest to each value, uint32 (n,)."""
    return np.searchsorted(_middles(centroids.astype(np.float64)), values).astype(np.uint32)


def _middles(centroids: Array) -> Array:
    return centroids[:-1] / 2 + centroids[1:] / 2


LENGTH: Final = np.dtype("<u4")
"""Type of the length of a coded section."""


def most_bytes(count: int, total: int, bits: int, code: Code | None) -> int:
    """Return the most bytes of ``count`` integers of ``bits`` bits whose sum is at most ``total``."""
    return (count * bits + 7) // 8 if code is None else LENGTH.itemsize + code.bound(count, total)


class Writer:
    """Writes sections to ``wire``, one after the other; without a ``code``, integers have a fixed length."""

    def __init__(self, wire: Bytes, code: Code | None) -> None:
        self.used = 0
        """Bytes written."""
        self._wire = wire
        self._code = code

    def raw(self, array: Array) -> None:
        """Write an array unchanged."""
        self._wire[self.used : self.used + array.nbytes] = array.view(np.uint8)
        self.used += array.nbytes

    def integers(self, numbers: Array, bits: int) -> None:
        """Write integers, uint32 (n,), of ``bits`` bits, at most 8."""
        if self._code is None:
            ones = (numbers.astype(np.uint8)[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
            self.raw(np.packbits(ones, bitorder="little"))
            return
        start = self.used + LENGTH.itemsize
        length = self._code.encode(numbers, self._wire[start:])
        self.raw(np.array([length], LENGTH))
        self.used += length

    def positions(self, positions: Array, size: int) -> None:
        """Write rising positions below ``size``: a bitmap, or the code of the gaps between them."""
        if self._code is None:
            present = np.zeros(size, np.uint32)
            present[positions] = 1
            self.integers(present, 1)
        else:
            self.integers((np.diff(positions, prepend=-1) - 1).astype(np.uint32), 0)


class Reader:
    """Reads the sections of a message in the order in which they were written.

    All methods raise ValueError for a message that no :class:`Writer` has written.
    """

    def __init__(self, message: Bytes, code: Code | None) -> None:
        self._message = message
        self._code = code
        self._at = 0

    def raw(self, count: int, dtype: npt.DTypeLike) -> Array:
        """Return an array (count,)."""
        return self._take(count * np.dtype(dtype).itemsize).view(dtype)

    def integers(self, count: int, bits: int) -> Array:
        """Return integers, uint32 (count,)."""
        numbers = np.zeros(count, np.uint32)
        if self._code is not None:
            self._code.decode(self._take(int(self.raw(1, LENGTH)[0])), numbers)
            return numbers
        packed = self._take((count * bits + 7) // 8)
        check_padding(packed, count * bits)
        ones = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
        for bit in range(bits):
            numbers |= ones[:, bit].astype(np.uint32) << np.uint32(bit)
        return numbers

    def positions(self, count: int, size: int) -> Array:
        """Return ``count`` positions, rising, below ``size``."""
        if self._code is None:
            present = np.flatnonzero(self.integers(size, 1))
            check_values(np.array(len(present) == count))
            return present
        positions = np.cumsum(self.integers(count, 0).astype(np.int64) + 1) - 1
        check_values(positions[-1:] < size)
        return positions

    def end(self) -> None:
        """Raise ValueError if anything follows."""
        check_values(np.array(self._at == len(self._message)))

    def _take(self, length: int) -> Bytes:
        check_values(np.array(self._at + length <= len(self._message)))
        self._at += length
        return self._message[self._at - length : self._at].copy()


TRAITS: Final = Compression(title="Han 2016")
MAX_CLUSTERS: Final = 256
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
        if not 2 <= clusters <= MAX_CLUSTERS:
            raise ValueError(f"clusters is {clusters}, not 2 to {MAX_CLUSTERS}")
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
