"""Values of many series, such as the logarithms of times, without outliers and effects that all series share."""

from typing import Final

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.statistics.differences import MIN_DEVIATION, SERIES
from hpcdl.analysis.statistics.estimates import Vector

Matrix = npt.NDArray[np.float64]

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
    row, place = np.arange(len(values)), share * last
    low, part = place.astype(np.int64), place % 1
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
        known = np.isfinite(logs[:, run]) & np.isfinite(window).any(axis=1)
        if known.sum() < SERIES:
            continue
        effect = float(np.median(logs[known, run] - np.nanmedian(window[known], axis=1)))
        if len(effects) >= LEVEL // 2:
            recent = np.array(effects[-LEVEL:])
            middle = float(np.median(recent))
            deviation = 1.4826 * float(np.median(np.abs(recent - middle)))
            if abs(effect - middle) <= LIMIT * deviation:
                cleaned[:, run] -= effect
        effects.append(effect)
    return cleaned
