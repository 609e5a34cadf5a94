"""Activations: ReLU and logistic sigmoid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.bound_ops import BoundElementary
from hpcdl.nn.geometry import Blob, Shape

if TYPE_CHECKING:
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.layer import Site, Variable


class ReLU:
    """y = max(x, 0), of any shape; the gradient at 0 is 0."""

    def __init__(self, name: str) -> None:
        self.name = name

    def output(self, shape: Shape) -> Shape:
        """Return the input shape."""
        return shape

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        """Nothing."""
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`."""
        return BoundElementary(site.backend.relu(Blob(shape, site.dtype)))


class Sigmoid:
    """y = 1 / (1 + exp(-x)), of any shape."""

    def __init__(self, name: str) -> None:
        self.name = name

    def output(self, shape: Shape) -> Shape:
        """Return the input shape."""
        return shape

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        """Nothing."""
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`."""
        return BoundElementary(site.backend.sigmoid(Blob(shape, site.dtype)))
