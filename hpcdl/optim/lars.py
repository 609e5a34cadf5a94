"""LARS: momentum with a rate for each tensor, for large batches."""

from __future__ import annotations

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.per_tensor import norm
from hpcdl.optim.parts.protocol import Rule, fraction, positive, state_vector


class LARS(Rule):
    """v = momentum * v - rate * local * (g + weight_decay * w);  w += v, for each tensor.

    local = trust * |w| / (|g| + weight_decay * |w|), and 1 where a norm is 0. Biases and batch normalisation have
    no decay and local = 1. Source: You, Gitman & Ginsburg 2017 (arXiv 1708.03888, algorithm 1).

    State: ``velocity``. Tensors must be whole: a vector that ends inside of one has another norm.
    """

    whole_tensors = True

    def __init__(self, *, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = 0.001) -> None:
        """Take ``momentum`` in [0, 1), ``weight_decay`` >= 0, ``trust`` > 0; raises ValueError otherwise."""
        super().__init__(weight_decay)
        self.momentum = fraction("momentum", momentum)
        self.trust = positive("trust", trust)

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
        velocity = state_vector(self.state, "velocity", parameters)
        velocity *= self.momentum
        for span, adapted, multiple in self.multipliers.whole_tensors(parameters, gradients):
            w, g = parameters[span], gradients[span]
            own, decay = rate * multiple, self.weight_decay if adapted else 0.0
            long, steep = norm(w), norm(g)
            if adapted and long > 0 and steep > 0:
                own *= self.trust * long / (steep + decay * long)
            velocity[span] -= own * (g + decay * w) if decay else own * g
        parameters += velocity
