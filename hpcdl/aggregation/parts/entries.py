"""Entries of sparse vectors: sums, selections and messages of the schemes that declare ``sparse``.

Such a scheme is called as ``scheme(comm, entries, series)`` and returns :class:`Reduced`. It sums the entries that
each rank's compressor has selected. A message holds the values, then the positions: 4 bytes more than a value for
each entry, and no header, so that volumes are those of the papers.

A receiver refuses a message without whole entries, positions that do not rise within the piece, and values that
are infinite or not a number. Finite values have no checksum, like those of dense sums: MPI's transports are
reliable. Gathered messages have one (:mod:`hpcdl.aggregation.parts.messages`), because in an entropy code a wrong
bit changes all that follows it.

Size-only entries (:class:`hpcdl.fabric.vectors.Phantom`) have no positions: they count as disjoint, spread evenly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from hpcdl.compression.parts import selection
from hpcdl.compression.parts.protocol import Sparse
from hpcdl.fabric.comm import Array
from hpcdl.fabric.vectors import partition, phantom, sizes_only

POSITION_BYTES: Final = 4
"""Bytes of a position on the wire."""
PASSES: Final = 3
"""Passes over the entries in a sum: copying them together, sorting, adding."""


@dataclass
class Series:
    """Sums of one piece of the gradient, step after step. All ranks have the same ``size`` and ``most``."""

    size: int
    """Elements of the piece."""
    most: int
    """Most entries of a rank."""
    state: dict[str, Array] = field(default_factory=dict)
    """Vectors that the scheme keeps from one sum to the next, by name."""


class Reduced(NamedTuple):
    """Result of a sparse sum on one rank: summed over ranks, ``rest`` + ``total`` = entries."""

    total: Sparse
    """The sum's entries, equal on all ranks bit for bit."""
    rest: Sparse
    """Entries that the sum lacks, for the residual of this rank."""


def message(entries: Sparse) -> Array:
    """Return the bytes of the entries, uint8."""
    return np.concatenate((entries.values.view(np.uint8), entries.indices.view(np.uint8)))


def opened(received: Array, like: Sparse, sender: int, size: int) -> Sparse:
    """Return the entries of a message of rank ``sender``, copied out of it; ``like`` has the type of the values.

    Raises ValueError, naming the sender, unless it has whole entries, at rising positions below ``size``, with
    finite values.
    """
    count = len(received) // entry_bytes(like)
    if sizes_only(like.values):
        return _phantoms(count, like)
    if len(received) != count * entry_bytes(like):
        raise ValueError(
            f"message of rank {sender}: truncated to {len(received)} bytes, which are no whole entries"
        )
    values, positions = np.split(received, [count * like.values.itemsize])
    indices = positions.copy().view(np.int32)
    if count and not (indices[0] >= 0 and indices[-1] < size and (indices[1:] > indices[:-1]).all()):
        raise ValueError(f"message of rank {sender}: corrupt: positions not rising in 0..{size - 1}")
    return Sparse(indices, finite(values.copy().view(like.values.dtype), sender))


def finite(values: Array, sender: int) -> Array:
    """Return ``values``. Raises ValueError, naming the sender, if one is infinite or not a number."""
    if not sizes_only(values) and not np.isfinite(values).all():
        raise ValueError(f"message of rank {sender}: corrupt, or sums are too large: a value is not finite")
    return values


def entry_bytes(entries: Sparse) -> int:
    """Return the bytes of an entry on the wire."""
    return int(entries.values.itemsize) + POSITION_BYTES


def nbytes(*several: Sparse) -> int:
    """Return the bytes of all entries."""
    return sum(len(entries.values) * entry_bytes(entries) for entries in several)


def summed(several: Sequence[Sparse]) -> Sparse:
    """Return the sum of sparse vectors. Entries of the same position are added in the given order."""
    indices, values = joined(several)
    if not len(indices) or sizes_only(values):
        return Sparse(indices, values)
    order = np.argsort(indices, kind="stable")
    indices, values = indices[order], values[order]
    firsts = np.flatnonzero(np.diff(indices, prepend=-1))
    return Sparse(indices[firsts], np.add.reduceat(values, firsts))


def dense(entries: Sparse, size: int) -> Array:
    """Return the vector of ``size`` elements with these entries."""
    vector = np.zeros_like(entries.values, shape=size)
    vector[entries.indices] = entries.values
    return vector


def nonzeros(vector: Array) -> Sparse:
    """Return the elements of a vector that are not zero; all of a size-only one."""
    if sizes_only(vector):
        return Sparse(phantom(len(vector), np.int32), vector)
    indices = np.flatnonzero(vector).astype(np.int32)
    return Sparse(indices, vector[indices])


def magnitudes(entries: Sparse) -> Array:
    """Return unsigned integers in the order of the values' magnitudes: their bits without the sign."""
    return selection.bits_of(np.abs(np.asarray(entries.values)))


def largest(entries: Sparse, count: int) -> tuple[Sparse, Sparse]:
    """Return the ``count`` entries of largest magnitude, and the others. Of equal ones the first are kept."""
    if len(entries.values) <= count:
        return entries, between(entries, 0, 0)
    if sizes_only(entries.values):
        return between(entries, 0, count), between(entries, count, len(entries.values))
    keep = selection.largest(magnitudes(entries), count)
    return _where(entries, keep), _where(entries, ~keep)


def at_least(entries: Sparse, least: int, equal: int) -> Sparse:
    """Return the entries whose magnitude is above ``least``, and the first ``equal`` ones that have it."""
    size = magnitudes(entries)
    if sizes_only(entries.values):
        return between(entries, 0, equal if least == 0 else 0)
    keep = size > least
    keep[np.flatnonzero(size == least)[:equal]] = True
    return _where(entries, keep)


def between(entries: Sparse, begin: int, end: int) -> Sparse:
    """Return the entries ``begin`` to ``end``, by their order."""
    return Sparse(entries.indices[begin:end], entries.values[begin:end])


def joined(several: Sequence[Sparse]) -> Sparse:
    """Return entries one after the other; the positions of one are below those of the next."""
    indices = np.concatenate([entries.indices for entries in several])
    return Sparse(indices, np.concatenate([entries.values for entries in several]))


def absent(entries: Sparse, total: Sparse) -> Sparse:
    """Return the entries at positions that ``total`` does not have."""
    if sizes_only(entries.values):
        return between(entries, 0, 0)
    return _where(entries, np.isin(entries.indices, total.indices, assume_unique=True, invert=True))


def present(entries: Sparse, total: Sparse) -> Sparse:
    """Return the entries at positions that ``total`` has."""
    if sizes_only(entries.values):
        return entries
    return _where(entries, np.isin(entries.indices, total.indices, assume_unique=True))


def cut(entries: Sparse, bounds: Sequence[int]) -> list[Sparse]:
    """Return the entries in each of the regions [bounds[i], bounds[i + 1])."""
    if sizes_only(entries.values):
        return [_phantoms(len(part), entries) for part in partition(entries.values, len(bounds) - 1)]
    places = np.searchsorted(entries.indices, bounds)
    return [between(entries, begin, end) for begin, end in pairwise(places.tolist())]


def histogram(entries: Sparse, edges: Array) -> Array:
    """Return the numbers of entries between the ``edges``, float32; they are even for size-only entries."""
    if sizes_only(entries.values):
        return np.diff(edges).astype(np.float32)
    return np.diff(np.searchsorted(entries.indices, edges)).astype(np.float32)


def _where(entries: Sparse, keep: Array) -> Sparse:
    return Sparse(entries.indices[keep], entries.values[keep])


def _phantoms(count: int, like: Sparse) -> Sparse:
    return Sparse(phantom(count, np.int32), phantom(count, like.values.dtype))
