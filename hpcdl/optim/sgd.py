"""Stochastic gradient descent with momentum, as in Caffe and FireCaffe, and Nesterov's accelerated gradient."""

from typing import Final

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.protocol import Rule, fraction, state_vector


class SGD(Rule):
    """v = momentum * v - rate * (g + weight_decay * w);  w += v.

    Source: Caffe's solver, which FireCaffe used (Iandola et al. 2016, arXiv 1511.00175; the sign of the printed
    rule is wrong). The rate is part of the velocity. PyTorch keeps it outside (v = momentum * v + g; w -= rate *
    v); both are equal while the rate is constant. With ``momentum_correction`` v is scaled by new / old rate where
    the rate changes (Goyal et al. 2017, section 3), which is PyTorch's form. State: ``velocity``; none if momentum
    is 0.
    """

    def __init__(
        self, *, momentum: float = 0.0, weight_decay: float = 0.0, momentum_correction: bool = False
    ) -> None:
        super().__init__(weight_decay)
        self.momentum = fraction("momentum", momentum)
        self.momentum_correction = momentum_correction
        self._last_rate = 0.0

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
        if self.momentum:
            self._step_with_momentum(parameters, gradients, rate)
            return
        for block, special in self.multipliers.blocks(parameters, gradients, scratch=1):
            w, g, step = block
            np.multiply(special.decayed(g, w, self.weight_decay, step), rate, out=step)
            special.scale(step)
            w -= step

    def _step_with_momentum(self, parameters: Array, gradients: Array, rate: float) -> None:
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
            self.move(w, v, step)

    def move(self, w: Array, velocity: Array, step: Array) -> None:  # noqa: ARG002 - a subclass takes the step
        """Move parameters by the new velocity; ``step``, rate * gradient, may change."""
        w += velocity


class Nesterov(SGD):
    """v = momentum * v - rate * (g + weight_decay * w);  w += momentum * v - rate * (g + weight_decay * w).

    Source: Sutskever et al. 2013 (ICML, section 2), in Caffe's formulation: the stored parameters are the
    look-ahead ones, where the gradient is computed, and the rate is part of the velocity. State: ``velocity``.
    """

    def __init__(self, *, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(momentum=momentum, weight_decay=weight_decay)

    @property
    def look_ahead(self) -> float:
        return self.momentum

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
        self._step_with_momentum(parameters, gradients, rate)

    def move(self, w: Array, velocity: Array, step: Array) -> None:
        w -= step
        np.multiply(velocity, self.momentum, out=step)
        w += step


OFFERS: Final = {"sgd": SGD, "nesterov": Nesterov}
