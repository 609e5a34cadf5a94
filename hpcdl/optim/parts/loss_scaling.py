"""Dynamic loss scaling for gradients in float16."""

from typing import Any, Final

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.protocol import Optimizer

INITIAL_SCALE: Final = 65536.0
"""Initial loss scale, as in PyTorch's ``GradScaler``."""
GROWTH_INTERVAL: Final = 2000
"""Number of updates without overflow before the scale doubles, as in PyTorch's ``GradScaler``."""


class LossScale:
    """Loss scale of one replica, an object with ``loss_scale`` and ``parameters``, shared by all its optimizers.

    It changes only between steps: after all entries of the parameters have been updated or skipped.
    """

    def __init__(self, replica: Any, initial: float, growth_interval: int) -> None:
        replica.loss_scale = initial
        self._replica = replica
        self._growth_interval = growth_interval
        self._without_overflow = 0
        self._recorded = 0
        """Entries of this step's gradient recorded so far."""
        self._overflowed = False

    def __deepcopy__(self, _memo: object) -> "LossScale":
        """Return itself, because all optimizers of a replica share one scale."""
        return self

    @property
    def value(self) -> float:
        """Return the factor in this step's gradients."""
        return float(self._replica.loss_scale)

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


def _delegated(name: str) -> Any:
    """Return a property that is the attribute ``name`` of the wrapped optimizer."""
    return property(
        lambda self: getattr(self._optimizer, name), lambda self, value: setattr(self._optimizer, name, value)
    )


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

    multipliers = _delegated("multipliers")
    state = _delegated("state")
    look_ahead = _delegated("look_ahead")
    steps = _delegated("steps")

    def __init__(
        self,
        optimizer: Optimizer,
        replica: Any,
        *,
        scale: float = INITIAL_SCALE,
        growth_interval: int = GROWTH_INTERVAL,
    ) -> None:
        self._optimizer = optimizer
        self._scale = LossScale(replica, scale, growth_interval)
        self.skipped = 0

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        """See :class:`hpcdl.optim.parts.protocol.Optimizer`; skips the update if a gradient is not finite."""
        finite = bool(np.isfinite(gradients).all())
        if finite:
            gradients *= 1 / self._scale.value
            self._optimizer.update(parameters, gradients, learning_rate)
        else:
            self.skipped += 1
        self._scale.record(gradients.size, overflowed=not finite)
