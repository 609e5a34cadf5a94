"""Adagrad, as in DistBelief's parameter server shards."""

from __future__ import annotations

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.protocol import Rule, positive, state_vector


class Adagrad(Rule):
    """s += g^2;  w -= rate * g / max(sqrt(s), epsilon), where g is the gradient plus weight_decay * w.

    Source: Duchi et al. 2011; DistBelief (Dean et al. 2012, section 4.1). Each scalar has its own rate, rate /
    sqrt(sum of squared gradients), which never grows. ``epsilon`` is a lower limit, not a summand, so larger sums
    give the paper's rate exactly. It makes the step 0 at a sum of 0, and limits steps whose squared gradient
    underflows. DistBelief's ``rate`` is about ten times a fixed one.

    State: ``sum_of_squares``.
    """

    def __init__(self, *, epsilon: float = 1e-10, weight_decay: float = 0.0) -> None:
        """Take ``epsilon`` > 0 (as a gradient) and ``weight_decay`` >= 0; raises ValueError otherwise."""
        super().__init__(weight_decay)
        self.epsilon = positive("epsilon", epsilon)

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
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
