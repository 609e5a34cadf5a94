"""Medians and quantiles with intervals, without assuming a distribution.

Rules kept here (Hoefler & Belli, Scientific Benchmarking of Parallel Computing Systems, SC15): an iteration
takes as long as its slowest rank; quantiles are taken over iterations, after that; ratios are ratios of
medians; every median has an interval.
"""

import math
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.statistics.differences import Matrix, Vector, upper

Middle = Literal["median", "mean"]
"""Statistic of a launch: the median of equal steps, or the mean of windows."""


TAIL: Final = 0.025
"""Probability on either side of a 95 % interval."""


class Interval(NamedTuple):
    """A value between two bounds; NaN where there is too little data to say."""

    value: float
    low: float
    high: float


NOTHING = Interval(float("nan"), float("nan"), float("nan"))


def median_interval(values: npt.ArrayLike) -> Interval:
    """The median of n values and the narrowest symmetric pair of order statistics that covers it.

    For independent values of any continuous distribution, x_(k) to x_(n+1-k) covers the median with
    probability 1 - 2 P(B <= k - 1), B binomial(n, 1/2); the largest k that keeps 95 % is taken
    (David & Nagaraja, Order Statistics, 7.1). Below 6 values no pair covers 95 %: the bounds are NaN.
    """
    from scipy.special import bdtr, bdtrik  # late: ranks do not need it; scipy.stats takes a second to import

    ordered = np.sort(np.asarray(values, np.float64).ravel())
    n = len(ordered)
    if n == 0:
        return NOTHING
    k = math.ceil(bdtrik(TAIL, n, 0.5))
    k -= k > 0 and bdtr(k - 1, n, 0.5) >= TAIL  # so that P(B <= k - 1) < TAIL
    middle = float(np.median(ordered))
    if k == 0:
        return Interval(middle, float("nan"), float("nan"))
    return Interval(middle, float(ordered[k - 1]), float(ordered[n - k]))


def mean_interval(values: npt.ArrayLike, confidence: float = 0.95) -> Interval:
    """The mean of n values with Student's t interval; one value has no bounds.

    For values that are means of many, such as batch means (Law, Simulation Modeling and Analysis, 9.5.3), and the
    usual choice for seeds.
    """
    values = np.asarray(values, np.float64).ravel()
    if len(values) < 2:
        return Interval(float(values[0]), float("nan"), float("nan")) if len(values) else NOTHING
    middle = float(values.mean())
    reach = student_quantile(len(values) - 1, confidence) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(middle, middle - reach, middle + reach)


def proportion_interval(successes: int, trials: int, tail: float = TAIL) -> Interval:
    """The share of successes in at least one trial, with exact bounds (Clopper & Pearson, Biometrika 26, 1934).

    ``tail``: probability on either side of them.
    """
    from scipy.special import betaincinv  # late: ranks do not need it

    failures = trials - successes
    low = betaincinv(successes, failures + 1, tail) if successes else 0.0
    high = betaincinv(successes + 1, failures, 1 - tail) if failures else 1.0
    return Interval(successes / trials, float(low), float(high))


def share_interval(share: float, samples: npt.ArrayLike, together: int = 1) -> Interval:
    """A share, and Student's t interval of the geometric mean of ``samples`` of it.

    It holds for ``together`` such shares at once (Bonferroni). Fewer than two samples give no bounds.
    """
    samples = np.asarray(samples, np.float64)
    samples = samples[np.isfinite(samples) & (samples > 0)]
    _, low, high = mean_interval(np.log(samples), 1 - 2 * TAIL / together)
    return Interval(share, math.exp(low), math.exp(high))


def student_quantile(freedom: float, confidence: float) -> float:
    """T such that Student's t with ``freedom`` >= 1 degrees is within -T to T with probability ``confidence``."""
    return float(upper((1 - confidence) / 2, freedom))


def center(values: Vector, middle: Middle) -> float:
    """The median or the mean."""
    return float(np.mean(values) if middle == "mean" else np.median(values))


def launches_interval(launches: Sequence[Vector], middle: Middle = "median") -> Interval:
    """The median over launches of each launch's median (or mean), with a 95 % interval.

    ``launches``: one vector of iterations per launch. The launch is the unit: from 6 launches on the interval is
    that of their medians, and 2 to 5 give Student's t interval of the logarithms of their medians. One launch
    does not show how launches vary: it has no bounds.
    """
    launches = [launch for launch in launches if len(launch)]
    if not launches:
        return NOTHING
    each = np.array([center(launch, middle) for launch in launches])
    over = median_interval(each)
    if len(each) >= 6 or len(each) == 1 or each.min() <= 0:
        return over
    _, low, high = mean_interval(np.log(each))
    return Interval(over.value, bounded_exp(low), bounded_exp(high))


def bounded_exp(value: float) -> float:
    """Return the exponential, infinity where it is beyond a float."""
    return math.exp(value) if not value > 700 else math.inf


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
