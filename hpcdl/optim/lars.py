"""LARS and LAMB: momentum, or Adam, with a rate for each tensor, for large batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.per_tensor import TensorUpdate, square
from hpcdl.optim.parts.protocol import Moments, Rule, fraction, positive, state_vector


class ByTensor(Rule):
    """Base of rules that need two norms of each tensor. A subclass has ``updates``."""

    whole_tensors = True

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
        self.multipliers.check_whole(parameters)
        for squares, update in self.updates(parameters, gradients, rate):
            update(*squares)

    def updates(self, parameters: Array, gradients: Array, rate: float) -> Iterator[TensorUpdate]:
        """Yield the update of each tensor; vectors may begin and end inside of one if norms are summed first."""
        raise NotImplementedError


class LARS(ByTensor):
    """v = momentum * v - rate * local * (g + weight_decay * w);  w += v, for each tensor.

    local = trust * |w| / (|g| + weight_decay * |w|), and 1 where a norm is 0. Biases and batch normalisation have
    no decay and local = 1. Source: You, Gitman & Ginsburg 2017 (arXiv 1708.03888, algorithm 1).

    State: ``velocity``. Tensors must be whole: a vector that ends inside of one has another norm.
    """

    def __init__(self, *, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = 0.001) -> None:
        """Take ``momentum`` in [0, 1), ``weight_decay`` >= 0, ``trust`` > 0; raises ValueError otherwise."""
        super().__init__(weight_decay)
        self.momentum = fraction("momentum", momentum)
        self.trust = positive("trust", trust)

    def updates(self, parameters: Array, gradients: Array, rate: float) -> Iterator[TensorUpdate]:
        velocity = state_vector(self.state, "velocity", parameters)
        velocity *= self.momentum
        for span, adapted, multiple in self.multipliers.tensors(parameters, gradients):
            w, g = parameters[span], gradients[span]
            decay = self.weight_decay if adapted else 0.0
            update = partial(self._update, w, g, velocity[span], rate * multiple, decay)
            yield (square(w), square(g)) if adapted else (0.0, 0.0), update

    def _update(
        self, w: Array, g: Array, velocity: Array, own: float, decay: float, long: float, steep: float
    ) -> None:
        if long > 0 and steep > 0:
            long, steep = math.sqrt(long), math.sqrt(steep)
            own *= self.trust * long / (steep + decay * long)
        velocity -= own * (g + decay * w) if decay else own * g
        w += velocity


class LAMB(Moments, ByTensor):
    """u = m' / (sqrt(s') + epsilon) + weight_decay * w;  w -= rate * |w| / |u| * u, for each tensor.

    m' and s' are those of :class:`hpcdl.optim.adam.Adam`; the ratio is 1 where a norm is 0. Biases and batch
    normalisation have no decay and the ratio 1. Source: You et al. 2020 (arXiv 1904.00962, algorithm 2).

    State: ``mean`` and ``mean_square``. Tensors must be whole, as for :class:`hpcdl.optim.lars.LARS`.
    """

    def __init__(
        self, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6, weight_decay: float = 0.01
    ) -> None:
        super().__init__(beta1, beta2, epsilon, weight_decay)

    def updates(self, parameters: Array, gradients: Array, rate: float) -> Iterator[TensorUpdate]:
        t = self.steps + 1
        mean = state_vector(self.state, "mean", parameters)
        square_mean = state_vector(self.state, "mean_square", parameters)
        for span, adapted, multiple in self.multipliers.tensors(parameters, gradients):
            w, g, m, s = (vector[span] for vector in (parameters, gradients, mean, square_mean))
            m *= self.beta1
            m += (1 - self.beta1) * g
            s *= self.beta2
            s += (1 - self.beta2) * g * g
            u = m / (1 - self.beta1**t)
            u /= np.sqrt(s / (1 - self.beta2**t)) + self.epsilon
            if adapted:
                u += self.weight_decay * w
            update = partial(self._update, w, u, rate * multiple)
            yield (square(w), square(u)) if adapted else (0.0, 0.0), update

    @staticmethod
    def _update(w: Array, u: Array, own: float, long: float, step: float) -> None:
        w -= (own * (math.sqrt(long) / math.sqrt(step) if long > 0 and step > 0 else 1.0)) * u


OFFERS: Final = {"lars": LARS, "lamb": LAMB}
