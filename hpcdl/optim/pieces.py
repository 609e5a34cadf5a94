"""Walking over long vectors in pieces that stay in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.fabric.comm import Array

PIECE_BYTES: Final = 1 << 17
"""Bytes of one vector per piece: Adam's four vectors and two of scratch stay within a 1 MiB level-two
cache, and a hundred thousand bytes are worth the microsecond that starting an array operation takes."""


def pieces(*vectors: Array, scratch: int = 1) -> Iterator[tuple[Array, ...]]:
    """Yield the vectors' pieces at one place, then ``scratch`` vectors of that length, content undefined.

    An update rule is several array operations; done over whole vectors each of them would go to memory,
    done piece by piece only the first does. The vectors are flat and of one length n; the last piece is
    shorter, and n = 0 yields nothing. Scratch has the dtype of the first vector. Arrays of another library
    than numpy are walked over in one piece, because there each operation is a kernel launch.

    Raises ValueError if a vector is not flat or the lengths differ.
    """
    shapes = [vector.shape for vector in vectors]
    if len(shapes[0]) != 1 or any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"expected flat vectors of one length, got shapes {', '.join(map(str, shapes))}")
    length = vectors[0].size
    piece = PIECE_BYTES // vectors[0].itemsize if isinstance(vectors[0], np.ndarray) else length
    room = [np.empty_like(vectors[0][:piece]) for _ in range(scratch)]
    for begin in range(0, length, piece or 1):
        here = slice(begin, min(begin + piece, length))
        width = here.stop - begin
        yield (*(vector[here] for vector in vectors), *(spare[:width] for spare in room))
