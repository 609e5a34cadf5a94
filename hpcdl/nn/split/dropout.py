"""Masks of dropout on the ranks of a model group."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import DropoutGeometry, Shape
    from hpcdl.nn.ops import Noise
    from hpcdl.nn.split.layout import Layout


class CutMasks:
    """Masks of a rank that has a part of each image: drawn for whole images, then cut.

    All ranks of a group draw the same numbers, those of the undivided network.
    """

    def __init__(self, noise: Noise, whole: Shape, index: tuple[slice, ...]) -> None:
        self._noise = noise
        self._whole = whole
        self._index = index
        self._mask: Array | None = None

    def reseed(self, key: Sequence[int]) -> None:
        """See :class:`hpcdl.nn.ops.Noise`."""
        self._noise.reseed(key)

    def continued(self) -> CutMasks:
        """See :class:`hpcdl.nn.ops.Noise`."""
        return CutMasks(self._noise.continued(), self._whole, self._index)

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Noise`."""
        ones = np.ones_like(x, shape=(len(x), *self._whole))
        self._mask = self._noise.forward(ones)[self._index].reshape(x.shape)
        return x * self._mask

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Noise`."""
        assert self._mask is not None, "a forward comes first"
        mask, self._mask = self._mask, None
        return dy * mask


class OwnMasks:
    """Masks of a rank that has its own images: each rank of the group draws other numbers."""

    def __init__(self, noise: Noise, rank: int) -> None:
        self._noise = noise
        self._rank = rank
        self.forward = noise.forward
        self.backward = noise.backward

    def reseed(self, key: Sequence[int]) -> None:
        """See :class:`hpcdl.nn.ops.Noise`."""
        self._noise.reseed((*key, self._rank))

    def continued(self) -> OwnMasks:
        """See :class:`hpcdl.nn.ops.Noise`."""
        return OwnMasks(self._noise.continued(), self._rank)


def masks(
    layout: Layout, rank: int, build: Callable[[DropoutGeometry], Noise], geometry: DropoutGeometry
) -> Noise:
    """Return the masks of ``rank`` for activations in a layout; ``build`` makes those of a whole network."""
    if layout.by_images:
        return OwnMasks(build(geometry), rank)
    index = (*[slice(None)] * layout.axis, slice(*layout.ranges[rank]))
    return CutMasks(build(replace(geometry, shape=layout.shape)), layout.shape, index)
