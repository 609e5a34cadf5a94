"""Activations: ReLU and logistic sigmoid."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hpcdl.nn.geometry import Blob, Shape
from hpcdl.nn.layer import BoundElementary

if TYPE_CHECKING:
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.layer import Alone, Site, Variable


class Elementwise:
    """A layer without parameters that treats each element alone."""

    alone: ClassVar[Alone] = "elements"
    operation: ClassVar[str]
    """Name of the backend's operation; see :class:`hpcdl.nn.backend.Backend`."""

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
        return BoundElementary(getattr(site.backend, self.operation)(Blob(shape, site.dtype)))


class ReLU(Elementwise):
    """y = max(x, 0), of any shape; the gradient at 0 is 0."""

    operation = "relu"


class Sigmoid(Elementwise):
    """y = 1 / (1 + exp(-x)), of any shape."""

    operation = "sigmoid"
