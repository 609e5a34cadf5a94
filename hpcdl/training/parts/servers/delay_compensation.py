"""Delay compensation of stale gradients (Zheng et al. 2017)."""

from __future__ import annotations

from typing import Final

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.fabric.vectors import partition
from hpcdl.training.parts.session import Session

STRENGTHS: Final = {"constant": 0.04, "adaptive": 2.0}
"""lambda and lambda_0 of the CIFAR-10 experiments of section 6, by variant."""

PASSES: Final = 5
"""Passes over a vector that one correction writes."""

_MEMORY: Final = 0.95
_EPSILON: Final = 1e-7


class DelayCompensation:
    """g + lambda g g (w - w_backup), per scalar (equation 10), for one shard.

    A first-order Taylor step from the parameters of the gradient to the present ones; lambda g g replaces the
    Hessian. The backups are the parameters last sent to each worker. lambda is ``strength``; if ``adaptive`` it is
    strength / sqrt(m + epsilon), m a moving mean of g g: DC-ASGD-a (equation 14).
    """

    def __init__(self, session: Session, workers: int, size: int, variant: str, strength: float | None) -> None:
        self._backups = partition(session.vector("backups", workers * size), workers)
        self._strength = STRENGTHS[variant] if strength is None else strength
        self._mean_square = session.vector("mean square", size) if variant == "adaptive" else None

    def remember(self, worker: int, parameters: Array) -> None:
        """Copy the parameters that are sent to ``worker``."""
        self._backups[worker][:] = parameters

    def correct(self, worker: int, gradient: Array, parameters: Array) -> None:
        """Change ``worker``'s gradient (n,) of a mean loss in place to an estimate at ``parameters`` (n,)."""
        change = parameters - self._backups[worker]
        change *= gradient
        change *= gradient
        change *= self._strength
        if self._mean_square is not None:
            self._mean_square *= _MEMORY
            self._mean_square += (1 - _MEMORY) * gradient * gradient
            change /= np.sqrt(self._mean_square + _EPSILON)
        gradient += change
