"""Medians, quantiles and what is known about them, without assuming a distribution.

Rules kept here (Hoefler & Belli, Scientific Benchmarking of Parallel Computing Systems, SC15): an iteration
takes as long as its slowest rank; quantiles are taken over iterations, after that; ratios are ratios of
medians; every median has an interval.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Vector = npt.NDArray[np.float64]
Middle = Literal["median", "mean"]
"""What speaks for a launch: the median of steps that are alike, the mean of parts of a time."""


class Interval(NamedTuple):
    """A value between two bounds; NaN where there is too little data to say."""

    value: float
    low: float
    high: float


NOTHING = Interval(float("nan"), float("nan"), float("nan"))


def slowest(iterations: npt.NDArray[Any], durations: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Vector]:
    """Per iteration the maximum over ranks.

    ``iterations`` and ``durations``: (rows,), one row per rank and iteration, in any order.
    Returns the iterations, ascending, and their maxima, both (distinct iterations,).
    """
    distinct, place = np.unique(iterations, return_inverse=True)
    maxima = np.full(len(distinct), -np.inf)
    np.maximum.at(maxima, place, durations)
    return distinct, maxima


def quantile(values: npt.ArrayLike, fraction: float) -> float:
    """The quantile, linear between order statistics (Hyndman & Fan 1996, type 7); NaN for no values."""
    values = np.asarray(values, np.float64)
    return float(np.quantile(values, fraction)) if values.size else float("nan")


def median_interval(values: npt.ArrayLike, confidence: float = 0.95) -> Interval:
    """The median of n values and the narrowest symmetric pair of order statistics that covers it.

    For independent values of any continuous distribution, x_(k) to x_(n+1-k) covers the median with
    probability 1 - 2 P(B <= k - 1), B binomial(n, 1/2); the largest k that keeps ``confidence`` is taken
    (David & Nagaraja, Order Statistics, 7.1). Below 6 values no pair covers 95 %: the bounds are NaN.
    """
    ordered = np.sort(np.asarray(values, np.float64).ravel())
    n = len(ordered)
    if n == 0:
        return NOTHING
    logarithms = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    below = np.cumsum(np.exp(logarithms[n] - logarithms - logarithms[::-1] - n * np.log(2)))
    k = int(np.searchsorted(below[: (n + 1) // 2], (1 - confidence) / 2, side="right"))
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


def student_quantile(freedom: int, confidence: float) -> float:
    """T such that Student's t with ``freedom`` degrees is within -T to T with probability ``confidence``.

    By bisection of the closed form for whole degrees (Abramowitz & Stegun 26.7.3 and 26.7.4).
    """
    low, high = 0.0, math.tan(math.pi / 2 * confidence) + 1  # one degree has the widest
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_within(middle, freedom) < confidence else (low, middle)
    return high


def _student_within(t: float, freedom: int) -> float:
    angle = math.atan(t / math.sqrt(freedom))
    term = math.cos(angle) if freedom % 2 else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if freedom % 2 else 2, freedom, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    return math.sin(angle) * total if freedom % 2 == 0 else 2 / math.pi * (angle + math.sin(angle) * total)


def center(values: Vector, middle: Middle) -> float:
    """The median or the mean."""
    return float(np.mean(values) if middle == "mean" else np.median(values))


def launches_interval(launches: Sequence[Vector], middle: Middle = "median") -> Interval:
    """The median over launches of each launch's median (or mean), with a 95 % interval.

    ``launches``: one vector of iterations per launch. The launch is the unit: from 6 launches on the interval
    is that of their medians. One launch gives the interval over its iterations, and 2 to 5 give the envelope
    of those, which speaks of the launches that were seen and no others.
    """
    launches = [launch for launch in launches if len(launch)]
    if not launches:
        return NOTHING
    each = [(mean_interval if middle == "mean" else median_interval)(launch) for launch in launches]
    over = median_interval([one.value for one in each])
    if len(each) >= 6:
        return over
    bounds = np.array([(one.low, one.high) for one in each])
    return Interval(over.value, float(bounds[:, 0].min()), float(bounds[:, 1].max()))


def ratio_interval(numerator: Sequence[Vector], denominator: Sequence[Vector], **options: Any) -> Interval:
    """The ratio of two medians (of launches' medians), with an interval as in :func:`compared`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = compared(np.divide, numerator, denominator, **options)
    return found if np.isfinite(found.value) else NOTHING


def difference_interval(minuend: Sequence[Vector], subtrahend: Sequence[Vector], **options: Any) -> Interval:
    """The difference of two medians (of launches' medians), with an interval as in :func:`compared`."""
    return compared(np.subtract, minuend, subtrahend, **options)


def compared(
    function: Callable[[Any, Any], Any],
    one: Sequence[Vector],
    other: Sequence[Vector],
    *,
    middles: tuple[Middle, Middle] = ("median", "median"),
    resamples: int = 4000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """A function of two medians (of launches' medians, or means), with a percentile bootstrap interval.

    Each side is a sequence of launches. A resample draws launches, then iterations within each drawn
    launch (Davison & Hinkley, Bootstrap Methods, 3.8). The same seed gives the same interval. Bounds are
    NaN when a launch has fewer than 6 iterations, as in :func:`median_interval`.
    """
    sides = [[np.sort(launch) for launch in side if len(launch)] for side in (one, other)]
    if not all(sides):
        return NOTHING
    value = float(
        function(
            *(
                np.median([center(launch, middle) for launch in side])
                for side, middle in zip(sides, middles, strict=True)
            )
        )
    )
    if min(len(launch) for side in sides for launch in side) < 6:
        return Interval(value, float("nan"), float("nan"))
    generator = np.random.default_rng(seed)
    values = function(
        *(_resampled(side, middle, resamples, generator) for side, middle in zip(sides, middles, strict=True))
    )
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value, float(low), float(high))


def _resampled(
    launches: Sequence[Vector], middle: Middle, resamples: int, generator: np.random.Generator
) -> Vector:
    """(resamples,) medians over drawn launches of the medians (or means) of drawn iterations."""
    bootstrap = {"median": _bootstrap_medians, "mean": _bootstrap_means}[middle]
    drawn = generator.integers(len(launches), size=(resamples, len(launches)))
    medians = np.empty(drawn.shape)
    for number, launch in enumerate(launches):
        here = drawn == number
        medians[here] = bootstrap(launch, int(here.sum()), generator)
    return np.asarray(np.median(medians, axis=1), np.float64)


def _bootstrap_medians(ordered: Vector, count: int, generator: np.random.Generator) -> Vector:
    """(count,) medians of bootstrap samples, without drawing the samples.

    The k-th of n draws from 0..n-1, put in order, is floor(n U) with U the k-th order statistic of n
    uniforms, which is Beta(k, n + 1 - k); given it, the next is U + (1 - U) Beta(1, n - k).
    """
    n = len(ordered)
    k = (n + 1) // 2
    lower = generator.beta(k, n + 1 - k, count)
    upper = lower if n % 2 else lower + (1 - lower) * generator.beta(1, n - k, count)
    places = [np.minimum((n * uniform).astype(np.int64), n - 1) for uniform in (lower, upper)]
    return np.asarray((ordered[places[0]] + ordered[places[1]]) / 2, np.float64)


def _bootstrap_means(values: Vector, count: int, generator: np.random.Generator) -> Vector:
    """(count,) means of bootstrap samples of a few values."""
    drawn = generator.integers(len(values), size=(count, len(values)))
    return np.asarray(values[drawn].mean(axis=1), np.float64)
