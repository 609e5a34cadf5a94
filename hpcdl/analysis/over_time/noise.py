"""Evidence of a step between two successive parts of a series, in the presence of outliers."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]

MAX: Final = 0.95
"""Largest estimate: a correlation of 1 leaves no evidence at all."""


def autocorrelation(values: Matrix) -> float:
    """Return the lag-1 correlation that all series have in common, 0 to :data:`MAX`; 0 without pairs of runs.

    ``values``: (series, runs), NaN if missing, each series about one level. By the signs of the departures from
    the median (quadrant correlation: Blomqvist, Ann. Math. Stat. 21, 1950), so that outliers do not matter. An
    estimated level makes it too small by (1 + 3 phi) / runs (Kendall, Biometrika 41, 1954). Less one standard
    error, so that few runs of few series count as independent.
    """
    signs = np.nan_to_num(np.sign(values - quantiles(values)[:, None]))
    products = signs[:, 1:] * signs[:, :-1]
    known = np.isfinite(values[:, 1:]) & np.isfinite(values[:, :-1])
    pairs = np.count_nonzero(known)
    if not pairs:
        return 0.0
    certain = max(float(products.sum()) / pairs - 1 / math.sqrt(pairs), 0)
    phi = math.sin(math.pi / 2 * certain)
    runs = max(pairs / np.count_nonzero(known.any(axis=1)), 4.0)
    return float(np.clip((phi + 1 / runs) / (1 - 3 / runs), 0, MAX))


def variance_of_mean(phi: float, count: npt.NDArray[np.int64]) -> Vector:
    """Return the variance of means of ``count`` successive values of variance 1 with lag-1 correlation ``phi``.

    Of an autoregressive process of first order; infinity for no value.
    """
    n = np.maximum(count, 1)
    inflation = (1 + phi) / (1 - phi) - 2 * phi * (1 - phi**n) / (n * (1 - phi) ** 2)
    return np.where(count > 0, inflation / n, np.inf)


def quantiles(values: Matrix, share: float = 0.5) -> Vector:
    """Return the quantile of the known values of each row; NaN for a row without."""
    last = np.maximum(np.isfinite(values).sum(axis=1) - 1, 0)
    ordered = np.sort(values, axis=1)  # NaN last
    row, place = np.arange(len(values)), share * last
    low, part = place.astype(np.int64), place % 1
    return np.asarray(ordered[row, low] * (1 - part) + ordered[row, np.minimum(low + 1, last)] * part, np.float64)


LEVEL: Final = 20
"""Runs whose median is the level of a series."""
SERIES: Final = 20
"""Series by which the effect of a run is known, at least."""
LIMIT: Final = 2.5
"""Robust standard deviations of earlier effects beyond which an effect may be a change of all series."""


def without_job_effects(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return ``logs`` (series, runs) less the effect of each run, known from the runs up to it.

    The effect is the median over series of the departures from their levels. An unusually large one may be a
    change of most series: it is kept. So no change of more than :data:`LIMIT` usual effects is lost.
    """
    cleaned = logs.copy()
    effects: list[float] = []
    for run in range(1, logs.shape[1]):
        window = logs[:, max(0, run - LEVEL) : run]
        known = np.isfinite(logs[:, run]) & np.isfinite(window).any(axis=1)
        if known.sum() < SERIES:
            continue
        effect = float(np.median(logs[known, run] - np.nanmedian(window[known], axis=1)))
        if len(effects) >= LEVEL // 2:
            recent = np.array(effects[-LEVEL:])
            usual = float(np.median(recent))
            deviation = 1.4826 * float(np.median(np.abs(recent - usual)))
            if abs(effect - usual) <= LIMIT * deviation:
                cleaned[:, run] -= effect
        effects.append(effect)
    return cleaned


CLIPPED: Final = 3.0
"""Standard deviations from the median beyond which a value is no usual one."""
OUTLIERS: Final = 0.4
"""Density of outliers per unit of the logarithm: 8 % of all values within a range of 20 %."""
MIN_DEVIATION: Final = 1e-4
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
    return values[distance <= max(CLIPPED * 1.4826 * float(np.median(distance)), MIN_DEVIATION)]


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
    deviation = max(math.sqrt(squares / freedom), MIN_DEVIATION)
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
