"""DC-ASGD: what a late gradient would be at the parameters as they are now (Zheng et al. 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcdl.fabric.comm import Array

CONSTANT: Final = 0.04
"""lambda of section 6's CIFAR-10 with a constant one."""

ADAPTIVE: Final = 2.0
"""lambda_0 there with an adaptive one."""

_MEMORY: Final = 0.95
_EPSILON: Final = 1e-7


class DelayCompensation:
    """g + lambda g g (w - w_backup), all per scalar (Zheng et al. 2017, equation 10).

    A first-order Taylor step from the parameters that the gradient was computed at to those it is applied to, with
    lambda g g in the place of the Hessian. The backup is what the worker was sent last: a vector for each worker.
    """

    def __init__(self, backups: Sequence[Array], strength: Callable[[Array], Array | float]) -> None:
        """Take a vector for each worker, and what gives lambda for a gradient."""
        self._backups = backups
        self._strength = strength

    def remember(self, worker: int, parameters: Array) -> None:
        """Note what ``worker`` computes its next gradient at."""
        self._backups[worker][:] = parameters

    def correct(self, worker: int, gradient: Array, parameters: Array) -> None:
        """Change ``worker``'s gradient (n,) of a mean loss in place into one at ``parameters`` (n,)."""
        change = parameters - self._backups[worker]
        change *= gradient
        change *= gradient
        change *= self._strength(gradient)
        gradient += change


class AdaptiveStrength:
    """lambda_0 / sqrt(m + epsilon), m a moving mean of g g (Zheng et al. 2017, equation 14): DC-ASGD-a."""

    def __init__(self, mean_square: Array, strength: float) -> None:
        """Take a vector of zeros to keep m in, and lambda_0."""
        self._mean_square = mean_square
        self._strength = strength

    def __call__(self, gradient: Array) -> Array:
        """Return lambda (n,) for ``gradient`` (n,), which counts in m."""
        self._mean_square *= _MEMORY
        self._mean_square += (1 - _MEMORY) * gradient * gradient
        return self._strength / np.sqrt(self._mean_square + _EPSILON)
