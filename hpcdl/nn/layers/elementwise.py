"""Layers that treat each element alone: ReLU, logistic sigmoid, dropout, flattening."""

from __future__ import annotations

import math
from typing import ClassVar

from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import Blob, DropoutGeometry, Shape
from hpcdl.nn.layer import Alone, BoundElementary, Site, Variable
from hpcdl.nn.ops import Bound, Noise


class Elementwise:
    """A layer without parameters that treats each element alone."""

    alone: ClassVar[Alone] = "elements"
    operation: ClassVar[str]
    """Name of the backend's operation; see :class:`hpcdl.nn.backend.Backend`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def output(self, shape: Shape) -> Shape:
        return shape

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:
        return BoundElementary(getattr(site.backend, self.operation)(Blob(shape, site.dtype)))


class ReLU(Elementwise):
    """y = max(x, 0), of any shape; the gradient at 0 is 0."""

    operation = "relu"


class Sigmoid(Elementwise):
    """y = 1 / (1 + exp(-x)), of any shape."""

    operation = "sigmoid"


class Dropout:
    """In training, zero a fraction ``ratio`` of the activations and divide the others by 1 - ratio.

    Srivastava et al. 2014; scaled in training as in Caffe, so evaluation is the identity. The masks depend only on
    the replica's last reseed key, the layer's name and the number of forwards since that reseed.
    """

    alone: ClassVar[Alone] = "elements"

    def __init__(self, name: str, ratio: float = 0.5) -> None:
        self.name = name
        self.ratio = ratio

    def output(self, shape: Shape) -> Shape:
        """Return the input shape; ValueError where the ratio is not in [0, 1)."""
        if not 0 <= self.ratio < 1:
            raise ValueError(f"{self.name}: ratio must be at least 0 and below 1, got {self.ratio}")
        return shape

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:
        if site.path in site.continued:
            return BoundDropout(site.continued[site.path].continued())
        op = site.backend.dropout(DropoutGeometry(shape, self.ratio, site.dtype))
        site.seeded.append((site.path, op))
        return BoundDropout(op)


class BoundDropout:
    """Bound dropout."""

    def __init__(self, op: Noise) -> None:
        self._op = op

    def forward(self, x: Array, train: bool) -> Array:
        return self._op.forward(x) if train else x

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        return self._op.backward(dy) if needs_dx else None


class Flatten:
    """(N, H, W, C) to (N, H W C), channels fastest; in Caffe and PyTorch width is fastest."""

    alone: ClassVar[Alone] = "elements"

    def __init__(self, name: str) -> None:
        self.name = name

    def output(self, shape: Shape) -> Shape:
        """Return (H W C,)."""
        return (math.prod(shape),)

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:  # noqa: ARG002
        return BoundFlatten(shape)


class BoundFlatten:
    """Bound flatten layer: reshape without a copy."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._size = math.prod(shape)

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        return x.reshape(len(x), self._size)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        return dy.reshape(len(dy), *self._shape) if needs_dx else None
