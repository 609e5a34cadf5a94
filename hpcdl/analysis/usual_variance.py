"""Variance that the series of an archive have in common: prior knowledge of the variance of each.

Empirical Bayes as in Smyth (Stat. Appl. Genet. Mol. Biol. 3, 2004), with medians: a few series do not matter.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

SERIES: Final = 20
"""Least number of series for an estimate."""
FREEDOM: Final = 1000.0
"""Degrees of freedom of the estimate, at most."""


class Variance(NamedTuple):
    """A variance, and the degrees of freedom that a series' own needs to weigh as much."""

    variance: float
    freedom: float


def usual_variance(values: npt.NDArray[np.float64]) -> Variance:
    """Return the usual variance of ``values`` (series, runs), NaN if missing; without freedom for few series.

    Of chi-squared variances with n degrees of freedom the logarithms have the variance 2/n and the mean bias -1/n.
    Further variance of the logarithms is a difference between series.
    """
    freedom = np.isfinite(values).sum(axis=1) - 1.0
    enough = freedom >= 5
    if enough.sum() < SERIES:
        return Variance(0.0, 0.0)
    values, freedom = values[enough], freedom[enough]
    variance = np.nanvar(values, axis=1, ddof=1)
    if not (variance > 0).all():
        return Variance(0.0, 0.0)
    logarithms = np.log(variance) + 1 / freedom
    middle = float(np.median(logarithms))
    spread = (1.4826 * float(np.median(np.abs(logarithms - middle)))) ** 2
    beyond = spread - float(np.mean(2 / (freedom - 1)))
    return Variance(float(np.exp(middle)), FREEDOM if beyond <= 2 / FREEDOM else 2 / beyond)
