"""Stochastic gradient descent with momentum, as in Caffe and FireCaffe."""

from __future__ import annotations

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.per_tensor import UNIFORM
from hpcdl.optim.parts.protocol import boolean, fraction, not_negative, state_vector


class SGD:
    """v = momentum * v - rate * (g + weight_decay * w);  w += v.

    Source: Caffe's solver, which FireCaffe used (Iandola et al. 2016, arXiv 1511.00175; the sign of the printed
    rule is wrong). The rate is part of the velocity, so a change of the rate affects new gradients only. PyTorch
    keeps it outside (v = momentum * v + g; w -= rate * v); both are equal while the rate is constant. With
    ``momentum_correction`` v is scaled by new / old rate where the rate changes (Goyal et al. 2017, section 3),
    which is PyTorch's form.

    State: ``velocity``; none if momentum is 0.
    """

    look_ahead = 0.0

    def __init__(
        self, *, momentum: float = 0.0, weight_decay: float = 0.0, momentum_correction: bool = False
    ) -> None:
        """Take ``momentum`` in [0, 1) and ``weight_decay`` >= 0; raises ValueError otherwise."""
        self.momentum = fraction("momentum", momentum)
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.momentum_correction = boolean("momentum_correction", momentum_correction)
        self._last_rate = 0.0
        self.multipliers = UNIFORM
        self.state: dict[str, Array] = {}
        self.steps = 0

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        if self.momentum == 0:
            self._without_momentum(parameters, gradients, float(learning_rate))
        else:
            self._with_momentum(parameters, gradients, float(learning_rate))
        self.steps += 1

    def _without_momentum(self, parameters: Array, gradients: Array, rate: float) -> None:
        for block, special in self.multipliers.blocks(parameters, gradients, scratch=1):
            w, g, step = block
            np.multiply(special.decayed(g, w, self.weight_decay, step), rate, out=step)
            special.scale(step)
            w -= step

    def _with_momentum(self, parameters: Array, gradients: Array, rate: float) -> None:
        velocity = state_vector(self.state, "velocity", parameters)
        if self.momentum_correction and self._last_rate and rate != self._last_rate:
            velocity *= rate / self._last_rate
        self._last_rate = rate
        for block, special in self.multipliers.blocks(parameters, gradients, velocity, scratch=1):
            w, g, v, step = block
            np.multiply(special.decayed(g, w, self.weight_decay, step), rate, out=step)
            special.scale(step)
            v *= self.momentum
            v -= step
            w += v
