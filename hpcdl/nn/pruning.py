"""Training of a pruned network: pruned weights stay zero, and so do their gradients.

Each weight matrix keeps its weights of largest magnitude (Han et al. 2015), here those at initialisation (Frankle
et al. 2021). Initial values depend on seed and name only, so all ranks prune alike, with every strategy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer, Site, Variable


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """Share of each weight matrix that is zero. ValueError: not above 0 and below 1."""

    sparsity: float

    def __post_init__(self) -> None:
        if not 0 < self.sparsity < 1:
            raise ValueError(f"sparsity: must be more than 0 and less than 1, not {self.sparsity}")


def pruned(layers: Sequence[Layer], pruning: Pruning) -> list[Layer]:
    """Return the layers with pruned weights; biases and batch normalisation are not pruned."""
    return [Pruned(layer, pruning.sparsity) for layer in layers]


class Pruned:
    """A layer that prunes its weights where it is bound first."""

    def __init__(self, layer: Layer, sparsity: float) -> None:
        self.name = layer.name
        self._layer = layer
        self._sparsity = sparsity

    def output(self, shape: Shape) -> Shape:
        """See :class:`hpcdl.nn.layer.Layer`."""
        return self._layer.output(shape)

    def declare(self, shape: Shape) -> list[Variable]:
        """See :class:`hpcdl.nn.layer.Layer`."""
        return self._layer.declare(shape)

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`. The backend's arrays are in the host's memory."""
        names = [
            f"{site.path}.{variable.name}"
            for variable in self.declare(shape)
            if variable.trained and len(variable.shape) > 1
        ]
        for name in names:
            prune(site.values[name], self._sparsity)
        pairs = [(site.values[name], site.gradients[name]) for name in names]
        return BoundPruned(self._layer.bind(shape, site), pairs)


class BoundPruned:
    """A bound layer whose gradients are zero where weights are."""

    def __init__(self, bound: Bound, pairs: Sequence[tuple[Array, Array]]) -> None:
        self._bound = bound
        self._pairs = pairs
        """Weights and their gradients."""

    def forward(self, x: Array, train: bool) -> Array:
        """See :class:`hpcdl.nn.bound.Bound`."""
        return self._bound.forward(x, train)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """See :class:`hpcdl.nn.bound.Bound`."""
        dx = self._bound.backward(dy, needs_dx)
        for weight, gradient in self._pairs:
            np.multiply(gradient, weight != 0, out=gradient)
        return dx


def prune(weight: Array, sparsity: float) -> None:
    """Set the smallest magnitudes of ``weight`` to zero, in place; a second call changes nothing."""
    magnitudes = np.abs(weight)
    count = int(sparsity * weight.size)
    weight[magnitudes < np.partition(magnitudes, count, axis=None)[count]] = 0
