"""Bias and ReLU of a layer whose outputs are summed over ranks first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.geometry import Blob, Shape
from hpcdl.nn.layer import Variable

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.layer import Site
    from hpcdl.nn.layers.linear import Linear
    from hpcdl.nn.ops import Elementary


class Bias:
    """(N, F) to (N, F): y = x + bias, then max(y, 0) if the fully connected layer ``of`` has a ReLU."""

    def __init__(self, name: str, of: Linear) -> None:
        self.name = name
        self.of = of

    def output(self, shape: Shape) -> Shape:
        """Return the input shape."""
        return shape

    def declare(self, shape: Shape) -> list[Variable]:
        """Return ``bias`` (F,), if the layer has one."""
        return [] if self.of.bias is None else [Variable("bias", shape, self.of.bias, rate=self.of.rates[1])]

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`."""
        relu = site.backend.relu(Blob(shape, site.dtype)) if self.of.relu else None
        return BoundBias(site, relu, biased=self.of.bias is not None)


class BoundBias:
    """Bound bias and ReLU."""

    def __init__(self, site: Site, relu: Elementary | None, *, biased: bool) -> None:
        self._bias = site.value("bias") if biased else None
        self._dbias = site.gradient("bias") if biased else None
        self._relu = relu

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        """See :class:`hpcdl.nn.bound.Bound`."""
        y = x if self._bias is None else x + self._bias
        return y if self._relu is None else self._relu.forward(y)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """See :class:`hpcdl.nn.bound.Bound`."""
        dx = dy if self._relu is None else self._relu.backward(dy)
        if self._dbias is not None:
            np.sum(dx, axis=0, out=self._dbias)
        return dx if needs_dx else None
