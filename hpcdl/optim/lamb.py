"""LAMB: Adam with a rate for each tensor, for large batches."""

from __future__ import annotations

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.per_tensor import norm
from hpcdl.optim.parts.protocol import Moments, state_vector


class LAMB(Moments):
    """u = m' / (sqrt(s') + epsilon) + weight_decay * w;  w -= rate * |w| / |u| * u, for each tensor.

    m' and s' are those of :class:`hpcdl.optim.adam.Adam`; the ratio is 1 where a norm is 0. Biases and batch
    normalisation have no decay and the ratio 1. Source: You et al. 2020 (arXiv 1904.00962, algorithm 2).

    State: ``mean`` and ``mean_square``. Tensors must be whole, as for :class:`hpcdl.optim.lars.LARS`.
    """

    whole_tensors = True

    def __init__(
        self, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6, weight_decay: float = 0.01
    ) -> None:
        super().__init__(beta1, beta2, epsilon, weight_decay)

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
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
            own = rate * multiple
            if adapted:
                u += self.weight_decay * w
                long, step = norm(w), norm(u)
                own *= long / step if long > 0 and step > 0 else 1.0
            w -= own * u
