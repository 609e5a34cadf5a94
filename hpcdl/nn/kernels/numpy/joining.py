"""Concatenation and addition of activations."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.activation_pool import allocate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Blob, ConcatenationGeometry


class Concatenation:
    """Concatenate blobs along the last axis; split their gradients."""

    def __init__(self, geometry: ConcatenationGeometry) -> None:
        bounds = list(accumulate((shape[-1] for shape in geometry.shapes), initial=0))
        self._slices = [slice(lo, hi) for lo, hi in pairwise(bounds)]
        self._shape = (*geometry.shapes[0][:-1], bounds[-1])
        self._shapes = geometry.shapes

    def forward(self, pieces: Sequence[Array]) -> Array:
        """See :class:`hpcdl.nn.ops.Concatenation`."""
        y = allocate((len(pieces[0]), *self._shape), pieces[0].dtype)
        np.concatenate(pieces, axis=-1, out=y)
        return y

    def backward(self, dy: Array) -> list[Array]:
        """See :class:`hpcdl.nn.ops.Concatenation`."""
        pieces = [allocate((len(dy), *shape), dy.dtype) for shape in self._shapes]
        for piece, part in zip(pieces, self._slices, strict=True):
            piece[...] = dy[..., part]
        return pieces


class Addition:
    """Add blobs of one shape."""

    def __init__(self, geometry: Blob) -> None:
        self._geometry = geometry

    def forward(self, terms: Sequence[Array]) -> Array:
        """See :class:`hpcdl.nn.ops.Addition`."""
        y = allocate(terms[0].shape, self._geometry.dtype)
        np.add(terms[0], terms[1], out=y)
        for term in terms[2:]:
            y += term
        return y
