"""Welch's test of many pairs of samples at once, adjusted for their number, and the smallest change it could see.

Rows are comparisons; each has two samples of a few values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.student import beyond, upper

if TYPE_CHECKING:
    from collections.abc import Sequence

Vector = npt.NDArray[np.float64]

ALPHA: Final = 0.05
"""False discovery rate of all comparisons together."""

POWER: Final = 0.8
"""Probability with which the smallest visible change is found."""

DRAWS: Final = 10_000
"""Simulated tests behind the smallest visible change."""


class Difference(NamedTuple):
    """Differences of means, one per comparison; NaN where a side does not say how its values vary."""

    value: Vector
    """Mean of the second sample less that of the first."""
    error: Vector
    """Standard error of ``value``."""
    freedom: Vector
    """Degrees of freedom of Student's t."""
    counts: Vector
    """(comparisons, 2): values of each sample."""

    @property
    def p(self) -> Vector:
        """Two-sided p-values; a difference without any spread has p = 0, or 1 if it is 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(self.value == 0, 0.0, np.abs(self.value) / self.error)
        return 2 * beyond(np.where(np.isnan(self.error), np.nan, t), self.freedom)

    def bounds(self, confidence: float = 0.95) -> tuple[Vector, Vector]:
        """Return the bounds of the interval."""
        reach = upper((1 - confidence) / 2, self.freedom) * self.error
        return self.value - reach, self.value + reach


def difference(one: Sequence[Vector], other: Sequence[Vector]) -> Difference:
    """Compare the means of two samples per comparison (Welch, Biometrika 34, 1947).

    ``one``, ``other``: one vector per comparison. A side of one value takes the other side's variance, and the
    test is Student's; two sides of one value have no error.
    """
    pairs = list(zip(one, other, strict=True))
    counts = np.array([[len(a), len(b)] for a, b in pairs], np.float64).reshape(-1, 2)
    means = np.array([[a.mean(), b.mean()] for a, b in pairs]).reshape(-1, 2)
    variances = np.array([[_variance(a), _variance(b)] for a, b in pairs]).reshape(-1, 2)
    known = np.where(np.isnan(variances), variances[:, ::-1], variances)
    squares = known / counts
    with np.errstate(divide="ignore", invalid="ignore"):
        welch = squares.sum(axis=1) ** 2 / (squares**2 / (counts - 1)).sum(axis=1)
    pooled = counts.sum(axis=1) - 2
    freedom = np.where((counts == 1).any(axis=1) | (squares.sum(axis=1) == 0), pooled, welch)
    freedom = np.where(freedom > 0, freedom, np.nan)
    return Difference(means[:, 1] - means[:, 0], np.sqrt(squares.sum(axis=1)), freedom, counts)


def _variance(values: Vector) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else math.nan


def adjusted(p: Vector) -> Vector:
    """Return p-values adjusted for their number (Benjamini & Hochberg, J. R. Statist. Soc. B 57, 1995).

    Rejecting those below 0.05 keeps the expected share of false ones among the rejected below 0.05. NaN stays NaN
    and does not count.
    """
    found = np.full(len(p), np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known])]
    scaled = p[order] * len(order) / np.arange(1, len(order) + 1)
    found[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1)
    return found


def smallest_visible(found: Difference, minimum: float, comparisons: int = 1) -> Vector:
    """Return the smallest true difference of each comparison that would be found with probability :data:`POWER`.

    It is found if p < 0.05 / ``comparisons``, which Benjamini and Hochberg ask of one that differs alone, and the
    difference is larger than ``minimum``. Samples are normal and of equal variance, which is estimated by the
    standard error, corrected to be median-unbiased (Wilson & Hilferty, PNAS 17, 1931). Few values estimate their
    own variance badly, and the closed form for a known one is too optimistic: tests are simulated, with a fixed
    seed.
    """
    result = np.full(len(found.value), np.nan)
    usable = np.isfinite(found.freedom) & (found.error >= 0)
    for counts in np.unique(found.counts[usable], axis=0):
        chosen = usable & (found.counts == counts).all(axis=1)
        error = found.error[chosen] * (1 - 2 / (9 * found.freedom[chosen])) ** -1.5
        threshold, noise = _tests(int(counts[0]), int(counts[1]), ALPHA / comparisons / 2)
        least = np.array([minimum / one if one > 0 else 0.0 for one in error])
        needed = [np.quantile(np.maximum(threshold, one) - noise, POWER) for one in least]
        result[chosen] = np.where(error > 0, np.array(needed) * error, minimum)
    return result


def _tests(one: int, other: int, probability: float) -> tuple[Vector, Vector]:
    """Simulate tests of equal means: critical and found differences, both (DRAWS,), in true standard errors."""
    generator = np.random.default_rng(0)
    noise = generator.standard_normal(DRAWS)
    shares = np.array([1 / one, 1 / other]) / (1 / one + 1 / other)
    spreads = [generator.chisquare(n - 1, DRAWS) / (n - 1) if n > 1 else None for n in (one, other)]
    first, second = (mine if mine is not None else its for mine, its in (spreads, spreads[::-1]))
    if first is None or second is None:
        return np.full(DRAWS, np.inf), noise
    squares = np.stack([shares[0] * first, shares[1] * second])
    freedom = np.full(DRAWS, float(one + other - 2))
    if min(one, other) > 1:
        freedom = squares.sum(0) ** 2 / (squares[0] ** 2 / (one - 1) + squares[1] ** 2 / (other - 1))
    grid = 1 / np.linspace(1 / freedom.min(), 1 / freedom.max(), 50)
    critical = np.exp(np.interp(1 / freedom, 1 / grid[::-1], np.log(upper(probability, grid[::-1]))))
    return critical * np.sqrt(squares.sum(0)), noise
