"""LARS: momentum with a rate for each tensor, for large batches."""

from __future__ import annotations

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.per_tensor import UNIFORM, norm
from hpcdl.optim.parts.protocol import fraction, not_negative, positive, state_vector


class LARS:
    """v = momentum * v - rate * local * (g + weight_decay * w);  w += v, for each tensor.

    local = trust * |w| / (|g| + weight_decay * |w|), and 1 where a norm is 0. Biases and batch normalisation have
    no decay and local = 1. Source: You, Gitman & Ginsburg 2017 (arXiv 1708.03888, algorithm 1).

    State: ``velocity``. Tensors must be whole: a vector that ends inside of one has another norm.
    """

    look_ahead = 0.0
    whole_tensors = True

    def __init__(self, *, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = 0.001) -> None:
        """Take ``momentum`` in [0, 1), ``weight_decay`` >= 0, ``trust`` > 0; raises ValueError otherwise."""
        self.momentum = fraction("momentum", momentum)
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.trust = positive("trust", trust)
        self.multipliers = UNIFORM
        self.state: dict[str, Array] = {}
        self.steps = 0

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        velocity = state_vector(self.state, "velocity", parameters)
        velocity *= self.momentum
        for span, adapted, multiple in self.multipliers.whole_tensors(parameters, gradients):
            w, g = parameters[span], gradients[span]
            rate, decay = float(learning_rate) * multiple, self.weight_decay if adapted else 0.0
            long, steep = norm(w), norm(g)
            if adapted and long > 0 and steep > 0:
                rate *= self.trust * long / (steep + decay * long)
            velocity[span] -= rate * (g + decay * w) if decay else rate * g
        parameters += velocity
        self.steps += 1
