"""Nesterov's accelerated gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.optim.decay import with_decay
from hpcdl.optim.memory import remembered
from hpcdl.optim.pieces import pieces
from hpcdl.optim.settings import fraction, not_negative

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array


class Nesterov:
    """v = momentum * v - rate * (g + weight_decay * w);  w += momentum * v - rate * (g + weight_decay * w).

    Source: Sutskever et al. 2013 (ICML, section 2), in Caffe's formulation: the parameters kept are the
    ones looked ahead to, where the gradient is taken, and the rate is inside the velocity. PyTorch's
    ``SGD(nesterov=True)`` keeps the rate outside; the two are equal while the rate is constant.

    State: ``velocity``.
    """

    def __init__(self, *, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        """Take ``momentum`` in [0, 1) and ``weight_decay`` >= 0; raises ValueError otherwise."""
        self.momentum = fraction("momentum", momentum)
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.state: dict[str, Array] = {}
        self.steps = 0

    @property
    def look_ahead(self) -> float:
        """The momentum."""
        return self.momentum

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        """Change ``parameters`` (n,) in place; see :class:`hpcdl.optim.protocol.Optimizer`."""
        rate = float(learning_rate)
        velocity = remembered(self.state, "velocity", parameters)
        for piece in pieces(parameters, gradients, velocity, scratch=1):
            w, g, v, step = piece
            np.multiply(with_decay(g, w, self.weight_decay, step), rate, out=step)
            v *= self.momentum
            v -= step
            w -= step
            np.multiply(v, self.momentum, out=step)
            w += step
        self.steps += 1
