"""Adam: momentum and RMSProp, both with bias correction; AdamW: with weight decay apart from the gradient."""

from __future__ import annotations

from typing import Final

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.protocol import Moments


class Adam(Moments):
    """m = beta1 m + (1 - beta1) g;  s = beta2 s + (1 - beta2) g^2;  w -= rate * m' / (sqrt(s') + epsilon).

    m' = m / (1 - beta1^t) and s' = s / (1 - beta2^t) at the t-th update. Source: Kingma & Ba 2015, algorithm 1, as
    in PyTorch's ``Adam``. Weight decay is the L2 penalty, part of g, unlike AdamW's decoupled decay.

    State: ``mean`` (m) and ``mean_square`` (s). t is ``steps`` + 1, so a checkpoint must include ``steps``.
    """

    def __init__(
        self, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        super().__init__(beta1, beta2, epsilon, weight_decay)

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
        self.adam_step(parameters, gradients, rate, self.weight_decay)


class AdamW(Moments):
    """w -= rate * weight_decay * w, then the step of :class:`Adam` without decay.

    Source: Loshchilov & Hutter 2019 (arXiv 1711.05101, algorithm 2), as in PyTorch's ``AdamW``.

    State: ``mean`` and ``mean_square``, and ``steps``, as of Adam.
    """

    def __init__(
        self, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.01
    ) -> None:
        super().__init__(beta1, beta2, epsilon, weight_decay)

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
        for block, special in self.multipliers.blocks(parameters, scratch=1):
            w, step = block
            np.multiply(w, rate * self.weight_decay, out=step)
            special.without_decay(step)
            special.scale(step)
            w -= step
        self.adam_step(parameters, gradients, rate, 0.0)


OFFERS: Final = {"adam": Adam, "adamw": AdamW}
