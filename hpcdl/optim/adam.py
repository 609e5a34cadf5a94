"""Adam: momentum and RMSProp, both with bias correction."""

from __future__ import annotations

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.per_tensor import UNIFORM
from hpcdl.optim.parts.protocol import adam_step, fraction, not_negative, positive


class Adam:
    """m = beta1 m + (1 - beta1) g;  s = beta2 s + (1 - beta2) g^2;  w -= rate * m' / (sqrt(s') + epsilon).

    m' = m / (1 - beta1^t) and s' = s / (1 - beta2^t) at the t-th update. Source: Kingma & Ba 2015, algorithm 1, as
    in PyTorch's ``Adam``. Weight decay is the L2 penalty, part of g, unlike AdamW's decoupled decay.

    State: ``mean`` (m) and ``mean_square`` (s). t is ``steps`` + 1, so a checkpoint must include ``steps``.
    """

    look_ahead = 0.0

    def __init__(
        self, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.0
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
        adam_step(self, parameters, gradients, float(learning_rate), self.weight_decay)
        self.steps += 1
