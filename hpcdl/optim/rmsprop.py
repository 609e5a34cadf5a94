"""RMSProp: Adagrad with a moving average instead of a sum."""

from __future__ import annotations

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.protocol import Rule, fraction, positive, state_vector


class RMSProp(Rule):
    """s = smoothing * s + (1 - smoothing) * g^2;  w -= rate * g / (sqrt(s) + epsilon).

    g is the gradient plus weight_decay * w. Source: Tieleman & Hinton 2012 (Coursera, lecture 6.5), in the form
    and with the defaults of PyTorch's ``RMSprop`` (smoothing is its ``alpha``; Hinton's slide has 0.9).

    State: ``mean_square``.
    """

    def __init__(self, *, smoothing: float = 0.99, epsilon: float = 1e-8, weight_decay: float = 0.0) -> None:
        """Take ``smoothing`` in [0, 1), ``epsilon`` > 0, ``weight_decay`` >= 0; else raises ValueError."""
        super().__init__(weight_decay)
        self.smoothing = fraction("smoothing", smoothing)
        self.epsilon = positive("epsilon", epsilon)

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
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
