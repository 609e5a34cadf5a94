"""Deep Compression: prune, cluster, and code by Huffman (Han et al. 2016)."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from hpcdl.compression.codes.integers import Huffman
from hpcdl.compression.parts.protocol import Bytes, Compression, Layout, check_finite, check_values, tensors
from hpcdl.compression.parts.selection import gaps, rising
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


TRAITS: Final = Compression(title="Han 2016")
MAX_CLUSTERS: Final = 256
COUNT: Final = np.dtype("<u4")
"""Type of the number of entries that pruning leaves, and of the length of a coded section."""


class DeepCompression:
    """The largest entries of each tensor, rounded to the centroids of clusters, in Huffman's code.

    - ``sparsity``: share of a tensor's entries that are not sent: the smallest, and zeros.
    - ``clusters``: by k-means from centroids at equal distances between the least and the largest entry.

    A tensor's message has the number of entries that pruning leaves, the centroids, and in code the numbers of the
    entries' clusters and the gaps between positions. A tensor with no more entries than clusters is sent as it is.

    A training compresses gradients, updates or gossip by it. No strategy fetches or broadcasts parameters by it,
    because gradients would be those of rounded parameters. The bytes of such a broadcast are those that
    :meth:`encode` returns for the parameters: of LeNet-5 with the default settings over 30 times fewer than dense.
    A message of decoded parameters decodes to the same numbers.
    """

    def __init__(self, layout: Layout, *, sparsity: float = 0.9, clusters: int = 16) -> None:
        if not 0 <= sparsity < 1:
            raise ValueError(f"sparsity is {sparsity}, not at least 0 and below 1")
        if not 2 <= clusters <= MAX_CLUSTERS:
            raise ValueError(f"clusters is {clusters}, not 2 to {MAX_CLUSTERS}")
        self.state: dict[str, Array] = {}
        self._sparsity, self._clusters = sparsity, clusters
        self._code = Huffman()
        self._dtype = np.dtype(layout.dtype)
        self._segments = tensors(layout)

    def bound(self, span: slice) -> int:
        """Return the most bytes of a message: nothing is pruned."""
        return sum(map(self._most, np.diff(self._segments.cuts(span)).tolist()))

    def expected(self, span: slice) -> None:
        """Return None: the bytes of a message depend on the values."""

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:  # noqa: ARG002
        check_finite(np.isfinite(vector).all())
        used = 0
        for start, stop in pairwise(self._segments.cuts(span).tolist()):
            for piece in self._pieces(vector[start:stop]):
                wire[used : used + piece.nbytes] = piece.view(np.uint8)
                used += piece.nbytes
        return used

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        reader = _Reader(message, self._code)
        for start, stop in pairwise(self._segments.cuts(span).tolist()):
            self._decode(reader, into[start:stop])
        check_values(reader.at == len(message))

    def _most(self, size: int) -> int:
        if size <= self._clusters:
            return size * self._dtype.itemsize
        coded = self._code.bound(size, size * (self._clusters - 1)) + self._code.bound(size, size)
        return self._clusters * self._dtype.itemsize + 3 * COUNT.itemsize + coded

    def _pieces(self, part: Array) -> Iterator[Array]:
        """Yield the arrays of a tensor's message; ``part`` then has what is not sent."""
        if len(part) <= self._clusters:
            yield part
            part[:] = 0
            return
        positions = largest(part, self._sparsity)
        yield np.array([len(positions)], COUNT)
        if not len(positions):
            return
        values = part[positions]
        centroids = clusters_of(values, self._clusters)
        numbers = nearest(values, centroids)
        yield centroids
        for integers in (numbers, gaps(positions)):
            coded = np.empty(self._code.bound(len(integers), int(integers.sum(dtype=np.uint64))), np.uint8)
            length = self._code.encode(integers, coded)
            yield np.array([length], COUNT)
            yield coded[:length]
        # Error feedback: what was pruned stays as it is, of what was sent the rounding remains.
        part[positions] = values - centroids[numbers]

    def _decode(self, reader: "_Reader", into: Array) -> None:
        if len(into) <= self._clusters:
            values = reader.raw(len(into), self._dtype)
            check_values(np.isfinite(values))
            into += values
            return
        count = int(reader.raw(1, COUNT)[0])
        check_values(count <= len(into))
        if not count:
            return
        centroids, numbers = reader.raw(self._clusters, self._dtype), reader.integers(count)
        check_values(np.isfinite(centroids) & (numbers.max() < self._clusters))
        positions = np.empty(count, np.int32)
        check_values(rising(reader.integers(count), len(into), positions))
        into[positions] += centroids[numbers]


class _Reader:
    """Reads the sections of a message in order; raises ValueError for a corrupt one."""

    def __init__(self, message: Bytes, code: Huffman) -> None:
        self._message = message
        self._code = code
        self.at = 0
        """Bytes read."""

    def raw(self, count: int, dtype: npt.DTypeLike) -> Array:
        """Return an array (count,)."""
        begin, self.at = self.at, self.at + count * np.dtype(dtype).itemsize
        check_values(self.at <= len(self._message))
        # Sections begin at any byte; a copy is aligned to its type.
        return self._message[begin : self.at].copy().view(dtype)

    def integers(self, count: int) -> Array:
        """Return coded integers, uint32 (count,)."""
        integers = np.empty(count, np.uint32)
        self._code.decode(self.raw(int(self.raw(1, COUNT)[0]), np.uint8), integers)
        return integers


def largest(part: Array, sparsity: float) -> Array:
    """Return the positions, int32, rising, of the entries that pruning leaves: the largest, and none that is zero.

    All entries as large as the smallest of these are left too.
    """
    magnitudes = np.abs(part)
    pruned = int(sparsity * len(part))
    threshold = np.partition(magnitudes, pruned)[pruned]
    return np.flatnonzero((magnitudes >= threshold) & (magnitudes > 0)).astype(np.int32)
