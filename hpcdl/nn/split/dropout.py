"""Dropout of activations that are split: masks are drawn whole, then cut."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hpcdl.nn.geometry import DropoutGeometry, Shape
from hpcdl.nn.precision import storage_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.layer import Site, Variable
    from hpcdl.nn.layers.dropout import Dropout
    from hpcdl.nn.ops import Noise
    from hpcdl.nn.split.layout import Layout


class CutDropout:
    """Dropout of ``rank``'s part of the activations, with its part of the mask of the undivided network."""

    def __init__(self, layer: Dropout, layout: Layout, rank: int) -> None:
        self.name = layer.name
        self._layer = layer
        self._whole = layout.shape
        self._index = (*[slice(None)] * layout.axis, slice(*layout.ranges[rank]))

    def output(self, shape: Shape) -> Shape:
        """See :class:`hpcdl.nn.layers.dropout.Dropout`."""
        return self._layer.output(shape)

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        """Nothing."""
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`."""
        op = site.backend.dropout(DropoutGeometry(self._whole, self._layer.ratio, site.dtype))
        site.seeded.append((site.path, op.reseed))
        return _BoundCutDropout(op, self._whole, self._index, site)


class _BoundCutDropout:
    def __init__(self, op: Noise, whole: Shape, index: tuple[slice, ...], site: Site) -> None:
        self._op = op
        self._whole = whole
        self._index = index
        self._site = site
        self._mask: Array | None = None

    def forward(self, x: Array, train: bool) -> Array:
        """See :class:`hpcdl.nn.bound.Bound`."""
        if not train:
            return x
        ones = self._site.backend.zeros(math.prod((len(x), *self._whole)), storage_dtype(self._site.dtype))
        ones += 1
        drawn = self._op.forward(ones.reshape(len(x), *self._whole))
        self._mask = drawn[self._index].reshape(x.shape)
        return x * self._mask

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """See :class:`hpcdl.nn.bound.Bound`."""
        assert self._mask is not None, "a training forward comes first"
        mask, self._mask = self._mask, None
        return dy * mask if needs_dx else None
