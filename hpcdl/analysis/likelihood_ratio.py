"""Evidence of a step between two successive parts of a series, in the presence of outliers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from hpcdl.analysis.statistics import Vector

CLIPPED: Final = 3.0
"""Standard deviations from the median beyond which a value is no usual one."""
OUTLIERS: Final = 0.4
"""Density of outliers per unit of the logarithm: 8 % of all values within a range of 20 %."""
LEAST_DEVIATION: Final = 1e-4
"""Standard deviation of the logarithms, at least."""


class Step(NamedTuple):
    """Step and its evidence; no step and no evidence where too few values agree."""

    size: float = 0.0
    """Of the logarithms."""
    evidence: float = 0.0
    """Logarithm of the likelihood ratio of the step (nats), of independent values after a known level."""
    freedom: float = 1.0
    """Degrees of freedom of the variance."""


def usual(values: Vector) -> Vector:
    """Return the values that are no outliers: within :data:`CLIPPED` robust deviations of the median."""
    distance = np.abs(values - np.median(values))
    return values[distance <= max(CLIPPED * 1.4826 * float(np.median(distance)), LEAST_DEVIATION)]


def step(before: Vector, after: Vector, squares: float, freedom: float, *, fewest: int) -> Step:
    """Return the step from ``before`` to ``after``.

    ``squares``, ``freedom``: sum of squares and degrees of freedom of a prior estimate of the variance. Values are
    normal, or outliers (Tukey's contaminated normal), so that a few outliers prove nothing. At least ``fewest``
    values after the step agree: within the usual scatter, or a quarter of the step.
    """
    deviation = math.sqrt(squares / freedom) if freedom > 0 else 0.0
    distance = np.abs(before - np.median(before))
    before = before[distance <= CLIPPED * max(deviation, 1.4826 * float(np.median(distance)))]
    freedom += len(before) - 1
    if freedom < 1:
        return Step()
    mean = float(before.mean())
    squares += float(((before - mean) ** 2).sum())
    deviation = max(math.sqrt(squares / freedom), LEAST_DEVIATION)
    level = float(np.median(after))
    agreeing = after[np.abs(after - level) <= max(CLIPPED * deviation, abs(level - mean) / 4)]
    if len(agreeing) < fewest:
        return Step()
    size = float(agreeing.mean()) - mean
    ratio = np.log(_density(after - mean - size, deviation) / _density(after - mean, deviation)).sum()
    return Step(size, max(float(ratio), 0.0), freedom)


def _density(departures: Vector, deviation: float) -> Vector:
    """Return the density of values that are normal, or outliers."""
    normal = np.exp(-((departures / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))
    return np.asarray(normal + OUTLIERS, np.float64)
