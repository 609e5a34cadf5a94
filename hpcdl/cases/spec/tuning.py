"""The search for a method's settings, as a suite writes it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hpcdl.fabric.network import NETWORKS
from hpcdl.registry import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TRIALS: Final = 1000
SEED: Final = 0
"""Seed of the trials' trainings, and of their settings: all seeds of a case share what was found."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A search for the learning rate, and for settings of optimizer and strategy.

    Ranges are pairs of positive numbers, searched on a logarithmic scale; two integers give integers. The first
    trial has the case's own settings; the others have quasi-random ones (Halton 1960, scrambled). Trials run
    without straggler, failure and jitter, on ``network`` or on that of the case. Raises ValueError for numbers out
    of range.
    """

    trials: int
    learning_rate: tuple[float, float] | None = None
    optimizer: Mapping[str, Any] = field(default_factory=dict, hash=False)
    training: Mapping[str, Any] = field(default_factory=dict, hash=False)
    network: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.trials <= MAX_TRIALS:
            raise ValueError(f"trials: must be from 1 to {MAX_TRIALS}, not {self.trials}")
        if self.network and self.network not in NETWORKS:
            raise ValueError(f"network: unknown {self.network!r}{nearest(self.network, NETWORKS)}")
        for (_, name), bounds in self.ranges.items():
            numbers = isinstance(bounds, list | tuple) and all(
                isinstance(bound, int | float) and not isinstance(bound, bool) for bound in bounds
            )
            if not numbers or len(bounds) != 2 or not 0 < bounds[0] < bounds[1] < math.inf:
                raise ValueError(f"{name}: must be two numbers, 0 < low < high, not {bounds!r}")
        if not self.ranges:
            raise ValueError("learning_rate: give a range of it, or of a setting of optimizer or training")

    @property
    def ranges(self) -> dict[tuple[str, str], Any]:
        """Bounds of all settings that are searched, by key of the case and name of the setting."""
        own = {("learning_rate", "learning_rate"): self.learning_rate} if self.learning_rate else {}
        parts = (("optimizer", self.optimizer), ("training", self.training))
        return own | {(key, name): bounds for key, settings in parts for name, bounds in settings.items()}

    def points(self) -> list[dict[tuple[str, str], float]]:
        """Return the settings of the trials after the first."""
        from scipy.stats import qmc  # late: ranks do not need it

        if self.trials == 1:
            return []
        rows = qmc.Halton(len(self.ranges), seed=SEED).random(self.trials - 1)
        return [
            {
                setting: _between(bounds[0], bounds[1], at)
                for (setting, bounds), at in zip(self.ranges.items(), row, strict=True)
            }
            for row in rows
        ]


def _between(low: float, high: float, at: float) -> float:
    """Return the number at ``at`` in [0, 1] between two, on a logarithmic scale."""
    if isinstance(low, int) and isinstance(high, int):
        value = low * math.exp(at * math.log((high + 1) / low))
        return min(high, int(value))
    return float(low * (high / low) ** at)
