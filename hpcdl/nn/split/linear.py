"""Fully connected layers split by their outputs or by their input features."""

from __future__ import annotations

from copy import copy

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import Blob, Shape
from hpcdl.nn.layer import Site, Variable
from hpcdl.nn.layers.linear import Linear
from hpcdl.nn.ops import Bound, Elementary
from hpcdl.nn.split.layout import Layout, cut, whole
from hpcdl.nn.split.part import Cut, Part, along


class Bias:
    """(N, F) to (N, F): y = x + bias, then max(y, 0) if the fully connected layer ``of`` has a ReLU."""

    def __init__(self, name: str, of: Linear) -> None:
        self.name = name
        self.of = of

    def output(self, shape: Shape) -> Shape:
        return shape

    def declare(self, shape: Shape) -> list[Variable]:
        """Return ``bias`` (F,), if the layer has one."""
        return [] if self.of.bias is None else [Variable("bias", shape, self.of.bias, rate=self.of.rates[1])]

    def bind(self, shape: Shape, site: Site) -> Bound:
        relu = site.backend.relu(Blob(shape, site.dtype)) if self.of.relu else None
        return BoundBias(site, relu, biased=self.of.bias is not None)


class BoundBias:
    """Bound bias and ReLU."""

    def __init__(self, site: Site, relu: Elementary | None, *, biased: bool) -> None:
        self._bias = site.value("bias") if biased else None
        self._dbias = site.gradient("bias") if biased else None
        self._relu = relu

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        y = x if self._bias is None else x + self._bias
        return y if self._relu is None else self._relu.forward(y)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        dx = dy if self._relu is None else self._relu.backward(dy)
        if self._dbias is not None:
            np.sum(dx, axis=0, out=self._dbias)
        return dx if needs_dx else None


def by_outputs(layer: Linear, shape: Shape, have: Layout, rank: int, ranks: int) -> list[Part]:
    """Split the outputs: every rank takes all inputs and has rows of the weights (Gholami et al. 2018, eq. 3).

    Inputs that are cut are gathered in forward; in backward the ranks' summands of the input gradient are
    reduce-scattered. B images of d inputs, in elements, all p ranks:

    Forward: (p - 1)*B*d
    Backward: (p - 1)*B*d

    Gholami's all-reduce in backward is twice that: here each rank needs the gradient of its own part only.
    """
    gives = cut((layer.outputs,), 1, ranks, layer=layer.name, noun="outputs")
    low, high = gives.ranges[rank]
    own = copy(layer)
    own.outputs = high - low
    return [Part(own, whole(have.shape, ranks), gives, rank, along(layer, shape, slice(low, high)))]


def by_inputs(layer: Linear, shape: Shape, have: Layout, rank: int, ranks: int) -> list[Part]:
    """Split the inputs: a rank multiplies its features by its columns of the weights.

    The ranks' summands of the outputs are reduce-scattered in forward, and the output gradient is gathered in
    backward. Bias and ReLU follow the sum. Inputs that are cut already are taken as they are. B images of d
    outputs, in elements, all p ranks:

    Forward: (p - 1)*B*d
    Backward: (p - 1)*B*d
    """
    takes = cut(shape, 1, ranks, layer=layer.name, noun="inputs") if have.by_images else have
    gives = whole((layer.outputs,), ranks)
    product = copy(layer)
    product.bias, product.relu = None, False
    weight, *_ = layer.declare(shape)
    columns = slice(*takes.ranges[rank])
    cuts = {"weight": Cut(weight, (layer.outputs, *takes.shape), takes.axis, columns)}
    sums = cut((layer.outputs,), 1, ranks, layer=layer.name, noun="outputs")
    own = slice(*sums.ranges[rank])
    biases = {name: part for name, part in along(layer, shape, own).items() if name == "bias"}
    finish = Part(Bias(f"{layer.name}.sum", layer), sums, sums, rank, biases, layer.name)
    return [Part(product, takes, gives, rank, cuts), finish]
