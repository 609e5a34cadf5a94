"""Flatten images to vectors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Alone, Site, Variable


class Flatten:
    """(N, H, W, C) to (N, H W C), channels fastest; in Caffe and PyTorch width is fastest."""

    alone: ClassVar[Alone] = "elements"

    def __init__(self, name: str) -> None:
        self.name = name

    def output(self, shape: Shape) -> Shape:
        """Return (H W C,)."""
        return (math.prod(shape),)

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        """Nothing."""
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:  # noqa: ARG002
        """See :class:`hpcdl.nn.layer.Layer`."""
        return BoundFlatten(shape)


class BoundFlatten:
    """Bound flatten layer: reshape without a copy."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._size = math.prod(shape)

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        """See :class:`hpcdl.nn.bound.Bound`."""
        return x.reshape(len(x), self._size)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """See :class:`hpcdl.nn.bound.Bound`."""
        return dy.reshape(len(dy), *self._shape) if needs_dx else None
