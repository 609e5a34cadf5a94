"""AdamW: Adam with weight decay apart from the gradient."""

from __future__ import annotations

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.per_tensor import UNIFORM
from hpcdl.optim.parts.protocol import adam_step, fraction, not_negative, positive


class AdamW:
    """w -= rate * weight_decay * w, then the step of :class:`hpcdl.optim.adam.Adam` without decay.

    Source: Loshchilov & Hutter 2019 (arXiv 1711.05101, algorithm 2), as in PyTorch's ``AdamW``.

    State: ``mean`` and ``mean_square``, and ``steps``, as of Adam.
    """

    look_ahead = 0.0

    def __init__(
        self, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.01
    ) -> None:
        """Take betas in [0, 1), ``epsilon`` > 0, ``weight_decay`` >= 0; raises ValueError otherwise."""
        self.beta1 = fraction("beta1", beta1)
        self.beta2 = fraction("beta2", beta2)
        self.epsilon = positive("epsilon", epsilon)
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.multipliers = UNIFORM
        self.state: dict[str, Array] = {}
        self.steps = 0

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        for block, special in self.multipliers.blocks(parameters, scratch=1):
            w, step = block
            np.multiply(w, float(learning_rate) * self.weight_decay, out=step)
            special.without_decay(step)
            special.scale(step)
            w -= step
        adam_step(self, parameters, gradients, float(learning_rate), 0.0)
        self.steps += 1
