"""Dynamic loss scaling for gradients in float16."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.per_tensor import Multipliers
from hpcdl.optim.parts.protocol import Optimizer

INITIAL_SCALE: Final = 65536.0
"""Initial loss scale, as in PyTorch's ``GradScaler``."""

GROWTH_INTERVAL: Final = 2000
"""Number of updates without overflow before the scale doubles, as in PyTorch's ``GradScaler``."""


class Scalable(Protocol):
    """A replica that multiplies its gradients by a loss scale."""

    loss_scale: float
    parameters: Array


class LossScale:
    """Loss scale of one replica, shared by all optimizers of its parameters.

    It changes only between steps: after all entries of the parameters have been updated or skipped.
    """

    def __init__(self, replica: Scalable, initial: float, growth_interval: int) -> None:
        replica.loss_scale = initial
        self._replica = replica
        self._growth_interval = growth_interval
        self._without_overflow = 0
        self._recorded = 0
        """Entries of this step's gradient recorded so far."""
        self._overflowed = False

    def __deepcopy__(self, _memo: object) -> LossScale:
        """Return itself, because all optimizers of a replica share one scale."""
        return self

    @property
    def value(self) -> float:
        """Return the factor in this step's gradients."""
        return self._replica.loss_scale

    def record(self, entries: int, *, overflowed: bool) -> None:
        """Count ``entries`` of this step's gradient; after the last ones choose the next step's scale."""
        self._recorded += entries
        self._overflowed |= overflowed
        if self._recorded < self._replica.parameters.size:
            return
        self._without_overflow = 0 if self._overflowed else self._without_overflow + 1
        if self._overflowed:
            self._replica.loss_scale /= 2
        elif self._without_overflow == self._growth_interval:
            self._without_overflow = 0
            self._replica.loss_scale *= 2
        self._recorded, self._overflowed = 0, False


class LossScaling:
    """Optimizer wrapper with dynamic loss scaling (Micikevicius et al. 2018, section 3.2).

    float16 has no numbers below 6e-8 and few below 6e-5, where many gradients lie. The loss, and so every
    gradient, is multiplied by ``replica.loss_scale``; an update divides by it. If a gradient overflowed, the
    update is skipped and the scale halved; after ``growth_interval`` updates without overflow it doubles.
    Gradients summed over ranks are equal, so all ranks decide alike. Scales are powers of two, so scaling causes
    no rounding.

    Copies for parts of the parameters share the scale; a step then is an update of every part. A part whose
    gradient overflowed is skipped, and after the step the scale is halved once.

    Unlike other optimizers, ``update`` leaves the gradients divided by the scale.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        replica: Scalable,
        *,
        scale: float = INITIAL_SCALE,
        growth_interval: int = GROWTH_INTERVAL,
    ) -> None:
        self._optimizer = optimizer
        self._scale = LossScale(replica, scale, growth_interval)
        self.skipped = 0
        """Number of skipped updates."""

    @property
    def multipliers(self) -> Multipliers:
        """Return the optimizer's multipliers."""
        return self._optimizer.multipliers

    @multipliers.setter
    def multipliers(self, multipliers: Multipliers) -> None:
        self._optimizer.multipliers = multipliers

    @property
    def state(self) -> dict[str, Array]:
        """Return the optimizer's state."""
        return self._optimizer.state

    @property
    def look_ahead(self) -> float:
        """Return the optimizer's look-ahead."""
        return self._optimizer.look_ahead

    @property
    def steps(self) -> int:
        """Return the number of updates without skipped ones."""
        return self._optimizer.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._optimizer.steps = steps

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        """See :class:`hpcdl.optim.parts.protocol.Optimizer`; skips the update if a gradient is not finite."""
        finite = bool(np.isfinite(gradients).all())
        if finite:
            gradients *= 1 / self._scale.value
            self._optimizer.update(parameters, gradients, learning_rate)
        else:
            self.skipped += 1
        self._scale.record(gradients.size, overflowed=not finite)
