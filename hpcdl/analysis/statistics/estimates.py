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

from hpcdl.analysis.statistics.differences import upper

Vector = npt.NDArray[np.float64]
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


def proportion_interval(successes: int, trials: int) -> Interval:
    """The share of successes in at least one trial, with exact bounds (Clopper & Pearson, Biometrika 26, 1934)."""
    from scipy.special import betaincinv  # late: ranks do not need it

    failures = trials - successes
    low = betaincinv(successes, failures + 1, TAIL) if successes else 0.0
    high = betaincinv(successes + 1, failures, 1 - TAIL) if failures else 1.0
    return Interval(successes / trials, float(low), float(high))


def share_interval(share: float, samples: npt.ArrayLike, together: int = 1) -> Interval:
    """A share, and Student's t interval of the geometric mean of ``samples`` of it.

    It holds for ``together`` such shares at once (Bonferroni). Fewer than two samples give no bounds.
    """
    samples = np.asarray(samples, np.float64)
    samples = samples[np.isfinite(samples) & (samples > 0)]
    _, low, high = mean_interval(np.log(samples), 1 - 2 * TAIL / together)
    return Interval(share, math.exp(low), math.exp(high))


def rank_correlation(first: npt.ArrayLike, second: npt.ArrayLike) -> Interval:
    """Spearman's rank correlation of two series, with the 95 % interval of Bonett & Wright (2000).

    Both are (n,), without ties; fewer than 4 values give no bounds. Equal orders count as half a swap from it: few
    values have them by chance.
    """
    places = np.array([np.argsort(np.argsort(np.asarray(series, np.float64))) for series in (first, second)])
    count = places.shape[1]
    if count < 4:
        return NOTHING
    value = float(np.corrcoef(places)[0, 1])
    most = 1 - 6 / (count * (count**2 - 1))
    middle = math.atanh(min(max(value, -most), most))
    reach = 1.96 * math.sqrt((1 + value**2 / 2) / (count - 3))
    return Interval(value, min(math.tanh(middle - reach), value), max(math.tanh(middle + reach), value))


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
