"""Nesterov's accelerated gradient."""

from __future__ import annotations

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.protocol import Rule, fraction, state_vector


class Nesterov(Rule):
    """v = momentum * v - rate * (g + weight_decay * w);  w += momentum * v - rate * (g + weight_decay * w).

    Source: Sutskever et al. 2013 (ICML, section 2), in Caffe's formulation: the stored parameters are the
    look-ahead ones, where the gradient is computed, and the rate is part of the velocity. PyTorch's
    ``SGD(nesterov=True)`` keeps the rate outside of it; both are equal while the rate is constant.

    State: ``velocity``.
    """

    def __init__(self, *, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        """Take ``momentum`` in [0, 1) and ``weight_decay`` >= 0; raises ValueError otherwise."""
        super().__init__(weight_decay)
        self.momentum = fraction("momentum", momentum)

    @property
    def look_ahead(self) -> float:
        """Return the momentum."""
        return self.momentum

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
        velocity = state_vector(self.state, "velocity", parameters)
        for block, special in self.multipliers.blocks(parameters, gradients, velocity, scratch=1):
            w, g, v, step = block
            np.multiply(special.decayed(g, w, self.weight_decay, step), rate, out=step)
            special.scale(step)
            v *= self.momentum
            v -= step
            w -= step
            np.multiply(v, self.momentum, out=step)
            w += step
