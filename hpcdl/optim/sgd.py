"""Stochastic gradient descent with momentum, as Caffe and FireCaffe do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.optim.decay import with_decay
from hpcdl.optim.memory import remembered
from hpcdl.optim.pieces import pieces
from hpcdl.optim.settings import fraction, not_negative

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array


class SGD:
    """v = momentum * v - rate * (g + weight_decay * w);  w += v.

    Source: FireCaffe (Iandola et al. 2016, arXiv 1511.00175), whose printed rule has the sign wrong and
    would ascend; this is Caffe's solver, which it used. The rate is inside the velocity, so a change of
    rate acts on new gradients only. PyTorch keeps it outside (v = momentum * v + g; w -= rate * v): equal
    while the rate is constant. When it changes, this rule does not scale v by new / old rate, which Goyal
    et al. 2017 (section 3, "momentum correction") ask for and PyTorch's form amounts to.

    State: ``velocity``; none if momentum is 0.
    """

    look_ahead = 0.0

    def __init__(self, *, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        """Take ``momentum`` in [0, 1) and ``weight_decay`` >= 0; raises ValueError otherwise."""
        self.momentum = fraction("momentum", momentum)
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.state: dict[str, Array] = {}
        self.steps = 0

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        """Change ``parameters`` (n,) in place; see :class:`hpcdl.optim.protocol.Optimizer`."""
        if self.momentum == 0:
            self._descend(parameters, gradients, float(learning_rate))
        else:
            self._roll(parameters, gradients, float(learning_rate))
        self.steps += 1

    def _descend(self, parameters: Array, gradients: Array, rate: float) -> None:
        for piece in pieces(parameters, gradients, scratch=1):
            w, g, step = piece
            np.multiply(with_decay(g, w, self.weight_decay, step), rate, out=step)
            w -= step

    def _roll(self, parameters: Array, gradients: Array, rate: float) -> None:
        velocity = remembered(self.state, "velocity", parameters)
        for piece in pieces(parameters, gradients, velocity, scratch=1):
            w, g, v, step = piece
            np.multiply(with_decay(g, w, self.weight_decay, step), rate, out=step)
            v *= self.momentum
            v -= step
            w += v
