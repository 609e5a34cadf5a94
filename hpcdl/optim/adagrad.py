"""Adagrad, the rule of DistBelief's parameter server shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.optim.decay import with_decay
from hpcdl.optim.memory import remembered
from hpcdl.optim.pieces import pieces
from hpcdl.optim.settings import not_negative, positive

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array


class Adagrad:
    """s += g^2;  w -= rate * g / max(sqrt(s), epsilon), with g the gradient and weight_decay * w.

    Source: Duchi et al. 2011; DistBelief (Dean et al. 2012, section 4.1): rate / sqrt(sum of squared
    gradients), one rate per scalar, which never grows. ``epsilon`` is a floor, not a term, so the rate is
    exactly the paper's wherever the sum says anything; at a sum of 0 it makes 0/0 a step of 0, and it keeps
    gradients whose square underflows from making huge steps. DistBelief's ``rate`` is about ten times a
    fixed one.

    State: ``sum_of_squares``.
    """

    look_ahead = 0.0

    def __init__(self, *, epsilon: float = 1e-10, weight_decay: float = 0.0) -> None:
        """Take ``epsilon`` > 0 (as a gradient) and ``weight_decay`` >= 0; raises ValueError otherwise."""
        self.epsilon = positive("epsilon", epsilon)
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.state: dict[str, Array] = {}
        self.steps = 0

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        """Change ``parameters`` (n,) in place; see :class:`hpcdl.optim.protocol.Optimizer`."""
        rate = float(learning_rate)
        squares = remembered(self.state, "sum_of_squares", parameters)
        for piece in pieces(parameters, gradients, squares, scratch=2):
            w, plain, s, decayed, step = piece
            g = with_decay(plain, w, self.weight_decay, decayed)
            np.multiply(g, g, out=step)
            s += step
            np.sqrt(s, out=step)
            np.maximum(step, self.epsilon, out=step)
            np.divide(g, step, out=step)
            step *= rate
            w -= step
        self.steps += 1
