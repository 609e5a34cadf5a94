"""AdamW: Adam with weight decay apart from the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.optim.adam import Adam
from hpcdl.optim.parts.protocol import not_negative

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.optim.parts.per_tensor import Multipliers


class AdamW:
    """w -= rate * weight_decay * w, then the step of :class:`hpcdl.optim.adam.Adam` without decay.

    Source: Loshchilov & Hutter 2019 (arXiv 1711.05101, algorithm 2), as in PyTorch's ``AdamW``. State: that of Adam.
    """

    look_ahead = 0.0

    def __init__(
        self, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.01
    ) -> None:
        """Take betas in [0, 1), ``epsilon`` > 0, ``weight_decay`` >= 0; raises ValueError otherwise."""
        self._adam = Adam(beta1=beta1, beta2=beta2, epsilon=epsilon)
        self.weight_decay = not_negative("weight_decay", weight_decay)

    @property
    def multipliers(self) -> Multipliers:
        """See :class:`hpcdl.optim.parts.protocol.Optimizer`."""
        return self._adam.multipliers

    @multipliers.setter
    def multipliers(self, multipliers: Multipliers) -> None:
        self._adam.multipliers = multipliers

    @property
    def state(self) -> dict[str, Array]:
        """State of Adam."""
        return self._adam.state

    @property
    def steps(self) -> int:
        """Updates so far."""
        return self._adam.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._adam.steps = steps

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        """Change ``parameters`` (n,) in place; see :class:`hpcdl.optim.parts.protocol.Optimizer`."""
        for (w, step), special in self.multipliers.blocks(parameters, scratch=1):
            np.multiply(w, float(learning_rate) * self.weight_decay, out=step)
            special.without_decay(step)
            special.scale(step)
            w -= step
        self._adam.update(parameters, gradients, learning_rate)
