"""Iterate over long vectors in blocks that stay in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.fabric.comm import Array

BLOCK_BYTES: Final = 1 << 17
"""Bytes of one vector per block. Adam's four vectors and two of scratch fit a 1 MiB level-two cache, and a block
takes much longer than the microsecond for starting an array operation."""


def block_length(vector: Array) -> int:
    """Return the number of entries per block; all entries for GPU arrays, whose operations are kernel launches."""
    return BLOCK_BYTES // vector.itemsize if isinstance(vector, np.ndarray) else vector.size


def blocks(*vectors: Array, scratch: int = 1) -> Iterator[tuple[Array, ...]]:
    """Yield corresponding blocks of the vectors, followed by ``scratch`` uninitialised vectors of that length.

    An update rule has several array operations; with blocks only the first one reads from memory. The vectors are
    flat and have one length n; the last block may be shorter, and n = 0 yields nothing. Scratch has the dtype of
    the first vector.

    Raises ValueError if a vector is not flat or the lengths differ.
    """
    shapes = [vector.shape for vector in vectors]
    if len(shapes[0]) != 1 or any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"expected flat vectors of one length, got shapes {', '.join(map(str, shapes))}")
    length = vectors[0].size
    block = block_length(vectors[0])
    buffers = [np.empty_like(vectors[0][:block]) for _ in range(scratch)]
    for begin in range(0, length, block or 1):
        here = slice(begin, min(begin + block, length))
        width = here.stop - begin
        yield (*(vector[here] for vector in vectors), *(buffer[:width] for buffer in buffers))
