"""Nesterov's accelerated gradient."""

from __future__ import annotations

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.per_tensor import UNIFORM
from hpcdl.optim.parts.protocol import fraction, not_negative, state_vector


class Nesterov:
    """v = momentum * v - rate * (g + weight_decay * w);  w += momentum * v - rate * (g + weight_decay * w).

    Source: Sutskever et al. 2013 (ICML, section 2), in Caffe's formulation: the stored parameters are the
    look-ahead ones, where the gradient is computed, and the rate is part of the velocity. PyTorch's
    ``SGD(nesterov=True)`` keeps the rate outside of it; both are equal while the rate is constant.

    State: ``velocity``.
    """

    def __init__(self, *, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        """Take ``momentum`` in [0, 1) and ``weight_decay`` >= 0; raises ValueError otherwise."""
        self.momentum = fraction("momentum", momentum)
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.multipliers = UNIFORM
        self.state: dict[str, Array] = {}
        self.steps = 0

    @property
    def look_ahead(self) -> float:
        """Return the momentum."""
        return self.momentum

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        rate = float(learning_rate)
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
        self.steps += 1
