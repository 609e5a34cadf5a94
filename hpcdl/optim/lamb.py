"""LAMB: Adam with a rate for each tensor, for large batches."""

from __future__ import annotations

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.per_tensor import UNIFORM, norm
from hpcdl.optim.parts.protocol import fraction, not_negative, positive, state_vector


class LAMB:
    """u = m' / (sqrt(s') + epsilon) + weight_decay * w;  w -= rate * |w| / |u| * u, for each tensor.

    m' and s' are those of :class:`hpcdl.optim.adam.Adam`; the ratio is 1 where a norm is 0. Biases and batch
    normalisation have no decay and the ratio 1. Source: You et al. 2020 (arXiv 1904.00962, algorithm 2).

    State: ``mean`` and ``mean_square``. Tensors must be whole, as for :class:`hpcdl.optim.lars.LARS`.
    """

    look_ahead = 0.0
    whole_tensors = True

    def __init__(
        self, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6, weight_decay: float = 0.01
    ) -> None:
        """Take betas in [0, 1), ``epsilon`` > 0, ``weight_decay`` >= 0; raises ValueError otherwise."""
        self.beta1 = fraction("beta1", beta1)
        self.beta2 = fraction("beta2", beta2)
        self.epsilon = positive("epsilon", epsilon)
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.multipliers = UNIFORM
        self.state: dict[str, Array] = {}
        self.steps = 0

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        t = self.steps + 1
        mean = state_vector(self.state, "mean", parameters)
        square = state_vector(self.state, "mean_square", parameters)
        for span, adapted, multiple in self.multipliers.whole_tensors(parameters, gradients):
            w, g, m, s = (vector[span] for vector in (parameters, gradients, mean, square))
            m *= self.beta1
            m += (1 - self.beta1) * g
            s *= self.beta2
            s += (1 - self.beta2) * g * g
            u = m / (1 - self.beta1**t)
            u /= np.sqrt(s / (1 - self.beta2**t)) + self.epsilon
            rate = float(learning_rate) * multiple
            if adapted:
                u += self.weight_decay * w
                long, step = norm(w), norm(u)
                rate *= long / step if long > 0 and step > 0 else 1.0
            w -= rate * u
        self.steps = t
