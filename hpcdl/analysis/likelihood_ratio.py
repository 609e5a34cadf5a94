"""Test of a step between two successive parts of a series, in the presence of outliers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hpcdl.analysis.spikes import robust_deviation
from hpcdl.analysis.student import beyond

if TYPE_CHECKING:
    from hpcdl.analysis.statistics import Vector

AGREE: Final = 3.0
"""Standard deviations by which a value may depart from the median of its side, to count."""
OUTLIERS: Final = 0.15
"""Density of outliers per unit of the logarithm: 3 % of all values between +10 and +30 %."""
SLACK: Final = 2.0
"""Nats by which Wald's bound is too strict (simulated: tests/analysis/history_figures.py)."""
LEAST_DEVIATION: Final = 1e-4
"""Standard deviation of the logarithms, at least."""


class Prior(NamedTuple):
    """Prior estimate of a series' variance, without the values before the step."""

    squares: float
    freedom: float


def step_test(before: Vector, after: Vector, prior: Prior, *, fewest: int) -> tuple[float, float]:
    """Return the step from ``before`` to ``after`` and its two-sided p value; 0 and 1 where too few values agree.

    The larger p value of two tests. Student's t, with the variance of ``before``, knows how well mean and variance
    are known. The likelihood ratio of the step for values of which some are outliers (Tukey's contaminated normal)
    is not led by a few outliers; its inverse bounds a p value (Wald, Ann. Math. Stat. 16, 1945).
    """
    spread = max(robust_deviation(before), math.sqrt(prior.squares / max(prior.freedom, 1)))
    usual = before[np.abs(before - np.median(before)) <= AGREE * spread]
    freedom = prior.freedom + len(usual) - 1
    if freedom < 1:
        return 0.0, 1.0
    mean = float(usual.mean())
    squares = prior.squares + float(((usual - mean) ** 2).sum())
    deviation = max(math.sqrt(squares / freedom), LEAST_DEVIATION)
    agreeing = after[np.abs(after - np.median(after)) <= AGREE * deviation]
    if len(agreeing) < fewest:
        return 0.0, 1.0
    step = float(agreeing.mean()) - mean
    student = np.array(abs(step) / (deviation * math.sqrt(1 / len(usual) + 1 / len(agreeing))))
    ratio = np.log(_density(after - mean - step, deviation) / _density(after - mean, deviation)).sum()
    return step, max(2 * float(beyond(student, np.array(freedom))), math.exp(min(-SLACK - float(ratio), 0)))


def _density(departures: Vector, deviation: float) -> Vector:
    """Density of values that are normal, or outliers."""
    normal = np.exp(-((departures / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))
    return np.asarray(normal + OUTLIERS, np.float64)
