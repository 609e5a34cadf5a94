"""Adagrad, as in DistBelief's parameter server shards."""

from __future__ import annotations

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.per_tensor import UNIFORM
from hpcdl.optim.parts.protocol import not_negative, positive, state_vector


class Adagrad:
    """s += g^2;  w -= rate * g / max(sqrt(s), epsilon), where g is the gradient plus weight_decay * w.

    Source: Duchi et al. 2011; DistBelief (Dean et al. 2012, section 4.1). Each scalar has its own rate, rate /
    sqrt(sum of squared gradients), which never grows. ``epsilon`` is a lower limit, not a summand, so larger sums
    give the paper's rate exactly. It makes the step 0 at a sum of 0, and limits steps whose squared gradient
    underflows. DistBelief's ``rate`` is about ten times a fixed one.

    State: ``sum_of_squares``.
    """

    look_ahead = 0.0

    def __init__(self, *, epsilon: float = 1e-10, weight_decay: float = 0.0) -> None:
        """Take ``epsilon`` > 0 (as a gradient) and ``weight_decay`` >= 0; raises ValueError otherwise."""
        self.epsilon = positive("epsilon", epsilon)
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.multipliers = UNIFORM
        self.state: dict[str, Array] = {}
        self.steps = 0

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        rate = float(learning_rate)
        squares = state_vector(self.state, "sum_of_squares", parameters)
        for block, special in self.multipliers.blocks(parameters, gradients, squares, scratch=2):
            w, plain, s, decayed, step = block
            g = special.decayed(plain, w, self.weight_decay, decayed)
            np.multiply(g, g, out=step)
            s += step
            np.sqrt(s, out=step)
            np.maximum(step, self.epsilon, out=step)
            np.divide(g, step, out=step)
            step *= rate
            special.scale(step)
            w -= step
        self.steps += 1
