"""Training of a pruned network, and training with weights and activations of few bits.

Pruned weights stay zero, and so do their gradients. Each weight matrix keeps its weights of largest magnitude:
those at initialisation (Frankle et al. 2021), or those after some steps, so that the pruned network is trained
again (Han et al. 2015, section 3). All ranks have the same weights, so that they prune alike.

Layers with few bits compute with rounded weights and pass on rounded activations; updates apply to weights in full
precision. Gradients pass through the rounding unchanged: the straight-through estimator. Magnitudes are rounded by
q_k(r) = round((2^k - 1) r) / (2^k - 1) (DoReFa: Zhou et al. 2016, equation 5); r in [0, 1] is relative to the
largest of a weight matrix, or of an image's activations. Values with signs use one of the bits for them, so that
zero stays zero (as in WAGE: Wu et al. 2018, section 3.1). The backend's arrays are in the host's memory.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Bound
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer, Site

MIN_BITS: Final = 2
"""Fewest bits of a number with a sign."""
MAX_BITS: Final = 16
"""Most bits that are rounded exactly in float32."""


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """Share of each weight matrix that is zero. ValueError: not above 0 and below 1, or fewer than 0 steps."""

    sparsity: float
    after_steps: int = 0
    """Steps of the whole network before it is pruned."""

    def __post_init__(self) -> None:
        if self.after_steps < 0:
            raise ValueError(f"after_steps: must be at least 0, not {self.after_steps}")
        if not 0 < self.sparsity < 1:
            raise ValueError(f"sparsity: must be more than 0 and less than 1, not {self.sparsity}")


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Bits of weights and activations. ValueError: fewer than 2 or more than 16."""

    weights: int = 16
    activations: int = 8

    def __post_init__(self) -> None:
        for name in ("weights", "activations"):
            if not MIN_BITS <= getattr(self, name) <= MAX_BITS:
                raise ValueError(f"{name}: must be {MIN_BITS} to {MAX_BITS} bits, not {getattr(self, name)}")


def pruned(layers: Sequence[Layer], pruning: Pruning) -> list[Layer]:
    """Return the layers with weights that are pruned where they are first bound, but not biases or vectors."""

    def bind(layer: Layer, shape: Shape, site: Site, names: list[str]) -> Bound:
        pairs = [(site.values[name], site.gradients[name]) for name in names]
        bound = BoundPruned(layer.bind(shape, site), pairs, pruning)
        bound.prune()
        return bound

    return [Reduced(layer, bind) for layer in layers]


def quantized(layers: Sequence[Layer], bits: Quantization) -> list[Layer]:
    """Return the layers with rounded weights and outputs; the last one's outputs, logits, are not rounded.

    Biases, batch normalisation and images are not rounded; of inner layers only the weights are.
    """

    def bind(layer: Layer, shape: Shape, site: Site, names: list[str]) -> Bound:
        rounded = {name: np.empty_like(site.values[name]) for name in names}
        bound = layer.bind(shape, replace(site, values=site.values | rounded))
        pairs = [(site.values[name], rounded[name]) for name in names]
        return BoundQuantized(bound, pairs, bits.weights, None if layer is layers[-1] else bits.activations)

    return [Reduced(layer, bind) for layer in layers]


class Reduced:
    """A layer that ``bind`` binds, given the layer, its input shape, the site and names of its weight matrices."""

    def __init__(self, layer: Layer, bind: Callable[[Layer, Shape, Site, list[str]], Bound]) -> None:
        self.name = layer.name
        self.output = layer.output
        self.declare = layer.declare
        self._layer = layer
        self._bind = bind

    def bind(self, shape: Shape, site: Site) -> Bound:
        names = [
            f"{site.path}.{variable.name}"
            for variable in self.declare(shape)
            if variable.trained and len(variable.shape) > 1
        ]
        return self._bind(self._layer, shape, site, names)


@dataclass(eq=False)
class BoundPruned:
    """A bound layer whose gradients are zero where weights are."""

    bound: Bound
    pairs: Sequence[tuple[Array, Array]]
    """Weights and their gradients."""
    pruning: Pruning
    steps: int = 0
    kept: Sequence[Array] = ()
    """Masks of the weights that are not pruned; none before that."""

    def forward(self, x: Array, train: bool) -> Array:
        self.prune()
        self.steps += train
        return self.bound.forward(x, train)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        dx = self.bound.backward(dy, needs_dx)
        for (_, gradient), kept in zip(self.pairs, self.kept, strict=False):
            np.multiply(gradient, kept, out=gradient)
        return dx

    def prune(self) -> None:
        """Prune if it is due; momentum of earlier steps doesn't bring pruned weights back."""
        if self.steps < self.pruning.after_steps:
            return
        if not self.kept:
            for weight, _ in self.pairs:
                prune(weight, self.pruning.sparsity)
            self.kept = [weight != 0 for weight, _ in self.pairs]
        elif self.pruning.after_steps:
            for (weight, _), kept in zip(self.pairs, self.kept, strict=True):
                np.multiply(weight, kept, out=weight)


def prune(weight: Array, sparsity: float) -> None:
    """Set the smallest magnitudes of ``weight`` to zero, in place; a second call changes nothing."""
    magnitudes = np.abs(weight)
    count = int(sparsity * weight.size)
    weight[magnitudes < np.partition(magnitudes, count, axis=None)[count]] = 0


@dataclass(eq=False)
class BoundQuantized:
    """A bound layer that rounds its weights before each forward, and its outputs after it."""

    bound: Bound
    pairs: Sequence[tuple[Array, Array]]
    """Weights in full precision, and the rounded ones that the layer reads."""
    weights: int
    activations: int | None

    def forward(self, x: Array, train: bool) -> Array:
        for full, rounded in self.pairs:
            rounded[:] = round_rows(full.reshape(1, -1), self.weights, signed=True).reshape(full.shape)
        y = self.bound.forward(x, train)
        if self.activations is None:
            return y
        rows = y.reshape(len(y), math.prod(y.shape[1:]))
        return round_rows(rows, self.activations, signed=False).reshape(y.shape)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        return self.bound.backward(dy, needs_dx)


def round_rows(rows: Array, bits: int, *, signed: bool) -> Array:
    """Return a copy of ``rows`` (N, n), each rounded to ``bits`` bits of its largest magnitude.

    A bit is the sign's if ``signed``, and in rows with a negative value.
    """
    if rows.size == 0:
        return rows.copy()
    low, high = rows.min(axis=1, keepdims=True), rows.max(axis=1, keepdims=True)
    levels = np.where((low < 0) | signed, (1 << (bits - 1)) - 1, (1 << bits) - 1).astype(rows.dtype)
    unit = np.maximum(-low, high) / levels
    unit[unit < np.finfo(rows.dtype).tiny] = 1  # rows of zeros, and of values too small for a step
    with np.errstate(invalid="ignore"):  # a training that diverges has infinite activations
        result: Array = np.rint(rows / unit) * unit
    return result
