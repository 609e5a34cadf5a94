"""Logistic sigmoid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.bound import BoundElementary
from hpcdl.nn.geometry import Blob, Shape

if TYPE_CHECKING:
    from hpcdl.nn.layer import Bound, Site, Variable


class Sigmoid:
    """y = 1 / (1 + exp(-x)), of any shape."""

    def __init__(self, name: str) -> None:
        self.name = name

    def output(self, shape: Shape) -> Shape:
        """Return the same shape."""
        return shape

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        """Nothing."""
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`."""
        return BoundElementary(site.backend.sigmoid(Blob(shape, site.dtype)))
