"""Layers that treat each element alone: ReLU, logistic sigmoid, dropout, flattening."""

import math
from dataclasses import dataclass
from typing import ClassVar

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Bound
from hpcdl.nn.geometry import Blob, DropoutGeometry, Shape
from hpcdl.nn.layer import Alone, BoundElementary, Plain, Site


class Elementwise(Plain):
    """A layer without parameters that treats each element alone."""

    alone: ClassVar[Alone] = "elements"
    operation: ClassVar[str]
    """Name of the backend's operation; see :class:`hpcdl.nn.backend.Backend`."""

    def bind(self, shape: Shape, site: Site) -> Bound:
        return BoundElementary(getattr(site.backend, self.operation)(Blob(shape, site.dtype)))


class ReLU(Elementwise):
    """y = max(x, 0), of any shape; the gradient at 0 is 0."""

    operation = "relu"


class Sigmoid(Elementwise):
    """y = 1 / (1 + exp(-x)), of any shape."""

    operation = "sigmoid"


@dataclass(eq=False)
class Dropout(Plain):
    """In training, zero a fraction ``ratio`` of the activations and divide the others by 1 - ratio.

    Srivastava et al. 2014; scaled in training as in Caffe, so evaluation is the identity. The masks depend only on
    the replica's last reseed key, the layer's name and the number of forwards since that reseed.
    """

    alone: ClassVar[Alone] = "elements"
    name: str
    ratio: float = 0.5

    def output(self, shape: Shape) -> Shape:
        """Return the input shape; ValueError where the ratio is not in [0, 1)."""
        if not 0 <= self.ratio < 1:
            raise ValueError(f"{self.name}: ratio must be at least 0 and below 1, got {self.ratio}")
        return shape

    def bind(self, shape: Shape, site: Site) -> Bound:
        if site.path in site.continued:
            return BoundElementary(site.continued[site.path].continued(), identity_in_evaluation=True)
        op = site.backend.dropout(DropoutGeometry(shape, self.ratio, site.dtype))
        site.seeded.append((site.path, op))
        return BoundElementary(op, identity_in_evaluation=True)


class Flatten(Plain):
    """(N, H, W, C) to (N, H W C), channels fastest; in Caffe and PyTorch width is fastest."""

    alone: ClassVar[Alone] = "elements"

    def output(self, shape: Shape) -> Shape:
        return (math.prod(shape),)

    def bind(self, shape: Shape, site: Site) -> Bound:  # noqa: ARG002
        return BoundElementary(Reshape(shape))


@dataclass(eq=False)
class Reshape:
    """Op that flattens inputs of a shape without a copy."""

    shape: Shape

    def forward(self, x: Array) -> Array:
        return x.reshape(len(x), math.prod(self.shape))

    def backward(self, dy: Array) -> Array:
        return dy.reshape(len(dy), *self.shape)
