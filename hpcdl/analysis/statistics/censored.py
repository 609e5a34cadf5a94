"""Comparison of two samples of times, each known between two bounds: of evaluations before and after an event.

A time without an upper bound is censored: the event had not come when the observation ended. Logarithms of times
are normal, with one standard deviation for both samples (Tobin, Econometrica 26, 1958; Burridge, J. R. Statist.
Soc. B 43, 1981). The ratio of the likelihoods with two means and with one gives t: for times that are known
exactly it is Student's. Only events count for its degrees of freedom.
"""

import math
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.statistics.differences import Vector, beyond, difference, upper

FAR: Final = 1e3
"""Logarithm of a bound that is none."""
WIDEST: Final = math.log(1e6)
"""Largest difference of means that is looked at."""
SHARPEST: Final = 1e3
"""Largest inverse of the standard deviation."""


class Times(NamedTuple):
    """Logarithms of the bounds of a sample."""

    low: Vector
    high: Vector
    """Infinite: not reached."""


class Delay:
    """Delay of the second sample relative to the first."""

    def __init__(self, first: Times, second: Times) -> None:
        """Fit both samples. Each has at least two times."""
        group = np.repeat([0, 1], [len(first.low), len(second.low)])
        high = np.concatenate([first.high, second.high]).clip(-FAR, FAR)
        low = np.concatenate([first.low, second.low]).clip(-FAR, FAR)
        self._group, self._low, self._high = group, np.minimum(low, high - 1e-6), high
        self._largest, (before, after, sharpness) = _fit(self._low, self._high, group)
        self.value = min(max((after - before) / sharpness, -WIDEST), WIDEST)
        """Difference of the mean logarithms."""
        self._events = max(3, int((high < FAR).sum()))
        times = np.where(high < FAR, high, low)
        sides = times[group == 0], times[group == 1]
        welch = difference([sides[0]], [sides[1]])
        squares = sum(float(side.var() * len(side)) for side in sides) / (len(group) - 2)
        pooled = math.sqrt(squares * sum(1 / len(side) for side in sides))
        self._factor = max(1.0, float(welch.error[0]) / pooled) if pooled else 1.0  # the smaller side varies more
        self._freedom = min(self._events - 2.0, float(welch.freedom[0]))

    def _statistic(self, shift: float) -> float:
        """Return twice the logarithm of the likelihoods' ratio for a difference of the means."""
        moved = np.where(self._group == 1, shift, 0.0)
        equal, _ = _fit(self._low - moved, self._high - moved, np.zeros_like(self._group))
        return max(2 * (self._largest - equal), 0.0)

    @cached_property
    def p(self) -> float:
        """Two-sided p-value of equal means."""
        ratio = math.expm1(self._statistic(0.0) / self._events)
        t = math.sqrt((self._events - 2) * ratio) / self._factor
        return 2 * float(beyond(t, self._freedom))

    def bounds(self) -> tuple[float, float]:
        """Return the 95 % interval of the difference; infinite where the samples do not limit it."""
        t = self._factor * float(upper(0.025, self._freedom))
        limit = self._events * math.log1p(t**2 / (self._events - 2))
        ends = []
        for end in (-WIDEST, WIDEST):
            inside, outside = self.value, end
            if self._statistic(outside) < limit:
                ends.append(math.copysign(math.inf, end))
                continue
            for _ in range(20):
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if self._statistic(middle) < limit else (inside, middle)
            ends.append(inside)
        return ends[0], ends[1]


def _fit(low: Vector, high: Vector, group: Vector) -> tuple[float, Vector]:
    """Return the largest log-likelihood, each group's mean by the standard deviation, and the latter's inverse.

    The likelihood is concave in these parameters: Newton's method.
    """
    columns = -np.eye(int(group.max()) + 1)[group]
    times = np.where(high < FAR, high, low)
    spread = max(float(times.std()), float(np.median(high - low)) if (high - low).max() < FAR else 0.0, 0.01)
    means = [times[group == number].mean() for number in range(columns.shape[1])]
    parameters = np.array([*means, 1.0]) / spread
    value, slope, curvature = _likelihood(low, high, columns, parameters)
    for _ in range(60):
        ridge = 1e-9 * max(1.0, np.abs(curvature).max()) * np.eye(len(parameters))
        step = np.linalg.solve(curvature - ridge, -slope)
        length = min(1.0, -0.9 * parameters[-1] / step[-1]) if step[-1] < 0 else 1.0
        while True:
            new = parameters + length * step
            new *= min(1.0, SHARPEST / new[-1])
            next_value, slope, curvature = _likelihood(low, high, columns, new)
            if next_value >= value - 1e-12 or length < 1e-8:
                break
            length /= 2
        gain, value, parameters = next_value - value, next_value, new
        if gain < 1e-8:
            break
    return value, parameters


def _likelihood(low: Vector, high: Vector, columns: Vector, parameters: Vector) -> tuple[float, Vector, Vector]:
    """Return the log-likelihood, its gradient and its second derivatives."""
    from scipy.special import log_ndtr  # late: ranks do not need it

    below, above = (np.column_stack([columns, bound]) for bound in (low, high))
    start, end = below @ parameters, above @ parameters
    left = start + end < 0  # of the far tail only the logarithm is exact
    larger = log_ndtr(np.where(left, end, -start))
    smaller = log_ndtr(np.where(left, start, -end))
    inside = larger + np.log1p(-np.exp(np.minimum(smaller - larger, -1e-12)))
    densities = (np.exp(-(z**2) / 2 - math.log(2 * math.pi) / 2 - inside) for z in (start, end))
    at_start, at_end = (density[:, None] for density in densities)
    slopes = at_end * above - at_start * below
    curved = (at_start * start[:, None] * below).T @ below - (at_end * end[:, None] * above).T @ above
    return float(inside.sum()), slopes.sum(axis=0), curved - slopes.T @ slopes
