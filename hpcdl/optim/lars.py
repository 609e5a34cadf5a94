"""LARS and LAMB: momentum, or Adam, with a rate for each tensor, for large batches."""

from collections.abc import Generator
from contextlib import suppress
from typing import Final

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.per_tensor import squares
from hpcdl.optim.parts.protocol import Moments, Rule, fraction, positive, state_vector


class ByTensor(Rule):
    """Base of rules that need two norms of each tensor."""

    whole_tensors = True

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
        self.multipliers.check_whole(parameters)
        update = self.phases(parameters, gradients, rate)
        with suppress(StopIteration):
            update.send(next(update))

    def phases(self, parameters: Array, gradients: Array, rate: float) -> Generator[Array, Array, None]:
        """Yield squared norms of the tensors or their parts, (tensors, 2); update by those of whole tensors."""
        raise NotImplementedError


class LARS(ByTensor):
    """v = momentum * v - rate * local * (g + weight_decay * w);  w += v, for each tensor.

    local = trust * |w| / (|g| + weight_decay * |w|), and 1 where a norm is 0. Biases and batch normalisation have
    no decay and local = 1. Source: You, Gitman & Ginsburg 2017 (arXiv 1708.03888, algorithm 1).

    State: ``velocity``. Tensors must be whole: a vector that ends inside of one has another norm.
    """

    def __init__(self, *, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = 0.001) -> None:
        super().__init__(weight_decay)
        self.momentum = fraction("momentum", momentum)
        self.trust = positive("trust", trust)

    def phases(self, parameters: Array, gradients: Array, rate: float) -> Generator[Array, Array, None]:
        velocity = state_vector(self.state, "velocity", parameters)
        velocity *= self.momentum
        tensors = self.multipliers.tensors(parameters, gradients)
        norms = np.sqrt((yield squares((parameters[span], gradients[span]) for span, _, _ in tensors)))
        for (span, adapted, multiple), (long, steep) in zip(tensors, norms.tolist(), strict=False):
            w, g = parameters[span], gradients[span]
            local, decay = rate * multiple, self.weight_decay if adapted else 0.0
            if adapted and long > 0 and steep > 0:
                local *= self.trust * long / (steep + decay * long)
            velocity[span] -= local * (g + decay * w) if decay else local * g
        parameters += velocity


class LAMB(Moments, ByTensor):
    """u = m' / (sqrt(s') + epsilon) + weight_decay * w;  w -= rate * |w| / |u| * u, for each tensor.

    m' and s' are those of :class:`hpcdl.optim.adaptive.Adam`; the ratio is 1 where a norm is 0. Biases and batch
    normalisation have no decay and the ratio 1. Source: You et al. 2020 (arXiv 1904.00962, algorithm 2).

    State: ``mean`` and ``mean_square``. Tensors must be whole, as for :class:`hpcdl.optim.lars.LARS`.
    """

    def __init__(
        self, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6, weight_decay: float = 0.01
    ) -> None:
        super().__init__(beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=weight_decay)

    def phases(self, parameters: Array, gradients: Array, rate: float) -> Generator[Array, Array, None]:
        t = self.steps + 1
        mean = state_vector(self.state, "mean", parameters)
        square = state_vector(self.state, "mean_square", parameters)
        tensors, steps = self.multipliers.tensors(parameters, gradients), list[Array]()
        for span, adapted, _ in tensors:
            w, g, m, s = (vector[span] for vector in (parameters, gradients, mean, square))
            m *= self.beta1
            m += (1 - self.beta1) * g
            s *= self.beta2
            s += (1 - self.beta2) * g * g
            u = m / (1 - self.beta1**t)
            u /= np.sqrt(s / (1 - self.beta2**t)) + self.epsilon
            if adapted:
                u += self.weight_decay * w
            steps.append(u)
        pairs = ((parameters[span], u) for (span, _, _), u in zip(tensors, steps, strict=True))
        norms = np.sqrt((yield squares(pairs))).tolist()
        for (span, adapted, multiple), u, (long, step) in zip(tensors, steps, norms, strict=False):
            ratio = long / step if adapted and long > 0 and step > 0 else 1.0
            parameters[span] -= rate * multiple * ratio * u


OFFERS: Final = {"lars": LARS, "lamb": LAMB}
