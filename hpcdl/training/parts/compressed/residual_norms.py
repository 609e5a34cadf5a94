"""Norms of a rank's residual and gradient over the steps of training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from hpcdl.fabric.vectors import Phantom

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array

POINTS: Final = 50
"""Steps of a long training whose norms are computed, about."""
SPACING: Final = 4
"""Steps from one to the next, at least, so that the median step computes none."""


class Norms(NamedTuple):
    """Norms of one rank after the exchange of one step."""

    step: int
    residual: float
    """Of the values that are not sent yet."""
    gradient: float
    """Of the rank's own gradient before the exchange."""


class ResidualNorms:
    """Sums of squares of the parts of a gradient and of its residual, in some of ``steps`` steps.

    Parts of one step may be exchanged at any time. 0 steps: none are computed.
    """

    def __init__(self, steps: int) -> None:
        self._last = steps - 1
        self._spacing = max(SPACING, steps // POINTS)
        self._squares: dict[int, tuple[float, float]] = {}

    def due(self, step: int) -> bool:
        """Return True if the norms of ``step`` are computed."""
        return step == self._last or (0 <= step < self._last and step % self._spacing == 0)

    def add_gradient(self, step: int, gradient: Array) -> None:
        """Count a part of the gradient; call it before the exchange, which replaces the part."""
        residual, before = self._squares.get(step, (0.0, 0.0))
        self._squares[step] = residual, before + _square(gradient)

    def add_residual(self, step: int, part: Array) -> None:
        """Count a part of what is not sent, after its exchange."""
        before, gradient = self._squares.get(step, (0.0, 0.0))
        self._squares[step] = before + _square(part), gradient

    def rows(self) -> list[Norms]:
        """Return the norms by step."""
        return [
            Norms(step, math.sqrt(residual), math.sqrt(gradient))
            for step, (residual, gradient) in sorted(self._squares.items())
        ]


def _square(vector: Array) -> float:
    return 0.0 if type(vector) is Phantom else float(vector @ vector)
