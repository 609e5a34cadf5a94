"""Sequence of layers: a branch of a composite layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer, Site, Variable


class Chain:
    """Sequence of layers; an empty one is the identity."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)

    def output(self, shape: Shape) -> Shape:
        """Return the shape after the last layer."""
        for layer in self.layers:
            shape = layer.output(shape)
        return shape

    def declare(self, shape: Shape) -> list[Variable]:
        """Return the variables of all layers, each name prefixed with its layer's."""
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
    """Sequence of bound layers."""

    def __init__(self, links: Sequence[Bound]) -> None:
        self._links = links

    def forward(self, x: Array, train: bool) -> Array:
        """See :class:`hpcdl.nn.bound.Bound`."""
        for link in self._links:
            x = link.forward(x, train)
        return x

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """See :class:`hpcdl.nn.bound.Bound`."""
        for i in reversed(range(len(self._links))):
            dx = self._links[i].backward(dy, needs_dx or i > 0)
            if dx is None:
                return None
            dy = dx
        return dy if needs_dx else None
