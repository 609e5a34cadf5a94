"""Welch's test of many pairs of samples at once, adjusted for their number.

Rows are comparisons; each has two samples of a few values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence


Vector = npt.NDArray[np.float64]

ALPHA: Final = 0.05
"""False discovery rate of all comparisons together."""


def beyond(t: Vector, freedom: npt.ArrayLike) -> Vector:
    """Return the probability that Student's t is larger than ``t`` >= 0; NaN where ``freedom`` is."""
    from scipy.special import stdtr  # late: ranks do not need it

    return np.asarray(stdtr(freedom, -t), np.float64)


def upper(probability: float, freedom: npt.ArrayLike) -> Vector:
    """Return t that Student's t exceeds with ``probability`` < 0.5; NaN where ``freedom`` is."""
    from scipy.special import stdtrit  # late: ranks do not need it

    return np.asarray(-stdtrit(freedom, probability), np.float64)


class Difference(NamedTuple):
    """Differences of means, one per comparison; NaN where a side does not say how its values vary."""

    value: Vector
    """Mean of the second sample less that of the first."""
    error: Vector
    """Standard error of ``value``."""
    freedom: Vector
    """Degrees of freedom of Student's t."""

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
    return Difference(means[:, 1] - means[:, 0], np.sqrt(squares.sum(axis=1)), freedom)


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
