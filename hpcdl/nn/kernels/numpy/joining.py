"""Concatenation and addition of activations."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.buffer import Buffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Blob, ConcatenationGeometry


class Concatenation:
    """Copies blobs side by side on the last axis, and their gradients apart."""

    def __init__(self, geometry: ConcatenationGeometry) -> None:
        bounds = list(accumulate((shape[-1] for shape in geometry.shapes), initial=0))
        self._slices = [slice(lo, hi) for lo, hi in pairwise(bounds)]
        self._y = Buffer((*geometry.shapes[0][:-1], bounds[-1]), geometry.dtype)
        self._pieces = [Buffer(shape, geometry.dtype) for shape in geometry.shapes]

    def forward(self, pieces: Sequence[Array]) -> Array:
        """See :class:`hpcdl.nn.ops.Concatenation`."""
        y = self._y.rows(len(pieces[0]))
        np.concatenate(pieces, axis=-1, out=y)
        return y

    def backward(self, dy: Array) -> list[Array]:
        """See :class:`hpcdl.nn.ops.Concatenation`."""
        pieces = [buffer.rows(len(dy)) for buffer in self._pieces]
        for piece, part in zip(pieces, self._slices, strict=True):
            piece[...] = dy[..., part]
        return pieces


class Addition:
    """Adds blobs of one shape."""

    def __init__(self, geometry: Blob) -> None:
        self._y = Buffer(geometry.shape, geometry.dtype)

    def forward(self, terms: Sequence[Array]) -> Array:
        """See :class:`hpcdl.nn.ops.Addition`."""
        y = self._y.rows(len(terms[0]))
        np.add(terms[0], terms[1], out=y)
        for term in terms[2:]:
            y += term
        return y
