"""Values of many series, such as the logarithms of times, without outliers and effects that all series share."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.statistics.differences import Matrix, Vector

Counts = npt.NDArray[np.int64]

MIN_DEVIATION: Final = 1e-4
"""Standard deviation of the logarithms, at least."""
SERIES: Final = 20
"""Least number of series for an estimate."""
FREEDOM: Final = 1000.0
"""Degrees of freedom of the estimate, at most."""
OUTLYING: Final = 4.5
"""Robust deviations from the median of five neighbours beyond which a value is an outlier."""
LEVEL: Final = 20
"""Runs whose spread is the recent one of a series, and from whose effects that of a run may depart."""
LIMIT: Final = 2.5
"""Robust standard deviations of earlier effects beyond which an effect may be a change of all series."""


def finite(values: Vector) -> Vector:
    """Return the known values."""
    return values[np.isfinite(values)]


def usual(values: Vector) -> Vector:
    """Return the values that are no outliers: within three robust deviations of the median."""
    distance = np.abs(values - np.median(values))
    return values[distance <= max(3 * 1.4826 * float(np.median(distance)), MIN_DEVIATION)]


def quantiles(values: Matrix, share: float = 0.5) -> Vector:
    """Return the quantile of the known values of each row; NaN for a row without."""
    last = np.maximum(np.isfinite(values).sum(axis=1) - 1, 0)
    ordered = np.sort(values, axis=1)  # NaN last
    row, position = np.arange(len(values)), share * last
    low, part = position.astype(np.int64), position % 1
    return np.asarray(ordered[row, low] * (1 - part) + ordered[row, np.minimum(low + 1, last)] * part, np.float64)


def without_outliers(values: Matrix) -> Matrix:
    """Return ``values`` (series, runs), known ones first, with the median of five neighbours in place of outliers.

    Three runs in a row at another level stay, one or two do not.
    """
    wide = np.pad(values, ((0, 0), (2, 2)), constant_values=np.nan)
    near = np.lib.stride_tricks.sliding_window_view(wide, 5, axis=1)
    middle = quantiles(near.reshape(-1, 5)).reshape(values.shape)
    distance = np.abs(values - middle)
    last = np.maximum(np.isfinite(values).sum(axis=1)[:, None] - np.arange(1, LEVEL + 1), 0)
    deviation = np.maximum(spread(distance), spread(np.take_along_axis(distance, last, axis=1)))
    return np.where(distance > OUTLYING * deviation[:, None], middle, values)


def spread(distances: Matrix) -> Vector:
    """Return the robust deviation of each row of distances from a median, of few distinct values, too.

    That of 80 % of a row counts if it is larger: values on a grid may be equal for the most part.
    """
    return np.maximum(np.maximum(1.4826 * quantiles(distances), 0.78 * quantiles(distances, 0.8)), MIN_DEVIATION)


def without_common_effects(logs: Matrix) -> Matrix:
    """Return ``logs`` (series, runs) less the effect of each run, known from the runs up to it.

    The effect is the median over series of the departures from their levels. An unusually large one may be a
    change of most series: it is kept. So no change of more than :data:`LIMIT` usual effects is lost.
    """
    cleaned = logs.copy()
    effects: list[float] = []
    for run in range(1, logs.shape[1]):
        window = logs[:, max(0, run - LEVEL // 2) : run]
        measured = np.isfinite(logs[:, run]) & np.isfinite(window).any(axis=1)
        if measured.sum() < SERIES:
            continue
        effect = float(np.median(logs[measured, run] - np.nanmedian(window[measured], axis=1)))
        if len(effects) >= LEVEL // 2:
            recent = np.array(effects[-LEVEL:])
            middle = float(np.median(recent))
            deviation = 1.4826 * float(np.median(np.abs(recent - middle)))
            if abs(effect - middle) <= LIMIT * deviation:
                cleaned[:, run] -= effect
        effects.append(effect)
    return cleaned


class Variance(NamedTuple):
    """A variance, and the degrees of freedom that a series' own needs to weigh as much."""

    variance: float
    freedom: float


def usual_variance(values: Matrix) -> Variance:
    """Return the usual variance of ``values`` (series, runs), NaN if missing; without freedom for few series.

    Of chi-squared variances with n degrees of freedom the logarithms have the variance 2/n and the mean bias -1/n.
    Further variance of the logarithms is a difference between series.
    """
    freedom = np.isfinite(values).sum(axis=1) - 1.0
    enough = freedom >= 5
    values, freedom = values[enough], freedom[enough]
    variance = np.nanvar(values, axis=1, ddof=1)
    if len(values) < SERIES or not (variance > 0).all():
        return Variance(0.0, 0.0)
    logarithms = np.log(variance) + 1 / freedom
    middle = float(np.median(logarithms))
    spread = (1.4826 * float(np.median(np.abs(logarithms - middle)))) ** 2
    beyond = spread - float(np.mean(2 / (freedom - 1)))
    return Variance(float(np.exp(middle)), FREEDOM if beyond <= 2 / FREEDOM else 2 / beyond)


def splits(values: Matrix, before: Counts, after: Counts, squares: Vector, freedom: Vector) -> Matrix:
    """Return the absolute t statistic of a split before each value, (series, values); missing values are 0.

    ``before``, ``after``: numbers of values on either side; ``squares``, ``freedom``: sum of squares of each
    from elsewhere, and its degrees of freedom.
    """
    left = np.cumsum(values, axis=1) - values
    right = values.sum(axis=1)[:, None] - left
    with np.errstate(divide="ignore", invalid="ignore"):
        within = (values**2).sum(axis=1)[:, None] - left**2 / before - right**2 / after
        variance = np.maximum(within, 0) + squares[:, None]
        variance /= np.maximum(before + after - 2 + freedom[:, None], 1)
        scatter = np.sqrt(np.maximum(variance, MIN_DEVIATION**2) * (1 / before + 1 / after))
        return np.asarray(np.abs(right / after - left / before) / scatter, np.float64)
