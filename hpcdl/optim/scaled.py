"""Dynamic loss scaling, for gradients in float16."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.optim.protocol import Optimizer

FIRST: Final = 65536.0
"""The scale to begin with, that of PyTorch's ``GradScaler``."""

PATIENCE: Final = 2000
"""Updates without overflow after which it doubles, likewise."""


class Scalable(Protocol):
    """What multiplies its gradients by a scale: a replica."""

    loss_scale: float


class LossScaling:
    """An optimizer behind a scale that is as large as float16 can bear (Micikevicius et al. 2018, section 3.2).

    float16 has no numbers below 6e-8 and few below 6e-5, where many gradients lie. The loss, and so every
    gradient, is multiplied by ``replica.loss_scale``; an update divides by it. Where a gradient overflowed nothing
    is updated and the scale is halved; after ``patience`` updates without overflow it doubles. Gradients summed
    over ranks are the same on all of them, so that all decide alike. Scales are powers of two and round nothing.

    Unlike a bare optimizer's, ``update`` leaves its gradients divided by the scale.
    """

    def __init__(
        self, optimizer: Optimizer, replica: Scalable, *, scale: float = FIRST, patience: int = PATIENCE
    ) -> None:
        self._optimizer = optimizer
        self._replica = replica
        self._patience = patience
        self._calm = 0
        self.skipped = 0
        """Updates left out."""
        replica.loss_scale = scale

    @property
    def state(self) -> dict[str, Array]:
        """The optimizer's."""
        return self._optimizer.state

    @property
    def look_ahead(self) -> float:
        """The optimizer's."""
        return self._optimizer.look_ahead

    @property
    def steps(self) -> int:
        """Updates made, those left out not counted."""
        return self._optimizer.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._optimizer.steps = steps

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        """See :class:`hpcdl.optim.protocol.Optimizer`; changes nothing where a gradient is not finite."""
        if not bool(np.isfinite(gradients).all()):
            self.skipped += 1
            self._calm = 0
            self._replica.loss_scale /= 2
            return
        gradients *= 1 / self._replica.loss_scale
        self._optimizer.update(parameters, gradients, learning_rate)
        self._calm += 1
        if self._calm == self._patience:
            self._calm = 0
            self._replica.loss_scale *= 2
