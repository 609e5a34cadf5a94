"""RMSProp: Adagrad with a moving average instead of a sum."""

from __future__ import annotations

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.per_tensor import UNIFORM
from hpcdl.optim.parts.protocol import fraction, not_negative, positive, state_vector


class RMSProp:
    """s = smoothing * s + (1 - smoothing) * g^2;  w -= rate * g / (sqrt(s) + epsilon).

    g is the gradient plus weight_decay * w. Source: Tieleman & Hinton 2012 (Coursera, lecture 6.5), in the form
    and with the defaults of PyTorch's ``RMSprop`` (smoothing is its ``alpha``; Hinton's slide has 0.9).

    State: ``mean_square``.
    """

    look_ahead = 0.0

    def __init__(self, *, smoothing: float = 0.99, epsilon: float = 1e-8, weight_decay: float = 0.0) -> None:
        """Take ``smoothing`` in [0, 1), ``epsilon`` > 0, ``weight_decay`` >= 0; else raises ValueError."""
        self.smoothing = fraction("smoothing", smoothing)
        self.epsilon = positive("epsilon", epsilon)
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.multipliers = UNIFORM
        self.state: dict[str, Array] = {}
        self.steps = 0

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        rate = float(learning_rate)
        mean_square = state_vector(self.state, "mean_square", parameters)
        for block, special in self.multipliers.blocks(parameters, gradients, mean_square, scratch=2):
            w, plain, s, decayed, step = block
            g = special.decayed(plain, w, self.weight_decay, decayed)
            np.multiply(g, g, out=step)
            step *= 1 - self.smoothing
            s *= self.smoothing
            s += step
            np.sqrt(s, out=step)
            step += self.epsilon
            np.divide(g, step, out=step)
            step *= rate
            special.scale(step)
            w -= step
        self.steps += 1
