"""Layers in a row, as a branch of a composite layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Bound, Layer, Site, Variable


class Chain:
    """Layers in a row; no layer at all is the identity."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)

    def output(self, shape: Shape) -> Shape:
        """Return the shape after the last layer."""
        for layer in self.layers:
            shape = layer.output(shape)
        return shape

    def declare(self, shape: Shape) -> list[Variable]:
        """Return the variables of all layers, their names preceded by the layer's."""
        declared: list[Variable] = []
        for layer in self.layers:
            declared += [
                replace(variable, name=f"{layer.name}.{variable.name}") for variable in layer.declare(shape)
            ]
            shape = layer.output(shape)
        return declared

    def bind(self, shape: Shape, site: Site) -> BoundChain:
        """Bind every layer inside ``site``."""
        bound = []
        for layer in self.layers:
            bound.append(layer.bind(shape, site.inside(layer.name)))
            shape = layer.output(shape)
        return BoundChain(bound)


class BoundChain:
    """Layers in a row, at work."""

    def __init__(self, links: Sequence[Bound]) -> None:
        self._links = links

    def forward(self, x: Array, train: bool) -> Array:
        """See :class:`hpcdl.nn.layer.Bound`."""
        for link in self._links:
            x = link.forward(x, train)
        return x

    def backward(self, dy: Array, wanted: bool) -> Array | None:
        """See :class:`hpcdl.nn.layer.Bound`."""
        for i in reversed(range(len(self._links))):
            dx = self._links[i].backward(dy, wanted or i > 0)
            if dx is None:
                return None
            dy = dx
        return dy if wanted else None
