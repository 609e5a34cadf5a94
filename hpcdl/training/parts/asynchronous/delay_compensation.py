"""DC-ASGD: an estimate of a late gradient at the present parameters (Zheng et al. 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcdl.fabric.comm import Array

CONSTANT: Final = 0.04
"""lambda of the CIFAR-10 experiments of section 6, constant variant."""

ADAPTIVE: Final = 2.0
"""lambda_0 of the CIFAR-10 experiments of section 6, adaptive variant."""

PASSES: Final = 5
"""Passes over a vector that one correction writes."""

_MEMORY: Final = 0.95
_EPSILON: Final = 1e-7


class DelayCompensation:
    """g + lambda g g (w - w_backup), per scalar (Zheng et al. 2017, equation 10).

    A first-order Taylor step from the parameters of the gradient to the present ones; lambda g g replaces the
    Hessian. ``backups``: for each worker the parameters last sent to it. ``strength(gradient)`` returns lambda.
    """

    def __init__(self, backups: Sequence[Array], strength: Callable[[Array], Array | float]) -> None:
        self._backups = backups
        self._strength = strength

    def remember(self, worker: int, parameters: Array) -> None:
        """Copy the parameters that are sent to ``worker``."""
        self._backups[worker][:] = parameters

    def correct(self, worker: int, gradient: Array, parameters: Array) -> None:
        """Change ``worker``'s gradient (n,) of a mean loss in place to an estimate at ``parameters`` (n,)."""
        change = parameters - self._backups[worker]
        change *= gradient
        change *= gradient
        change *= self._strength(gradient)
        gradient += change


class AdaptiveStrength:
    """lambda_0 / sqrt(m + epsilon), m a moving mean of g g (Zheng et al. 2017, equation 14): DC-ASGD-a.

    ``mean_square``: m, zeros at first. ``strength``: lambda_0.
    """

    def __init__(self, mean_square: Array, strength: float) -> None:
        self._mean_square = mean_square
        self._strength = strength

    def __call__(self, gradient: Array) -> Array:
        """Add ``gradient`` (n,) to m and return lambda (n,)."""
        self._mean_square *= _MEMORY
        self._mean_square += (1 - _MEMORY) * gradient * gradient
        return self._strength / np.sqrt(self._mean_square + _EPSILON)
