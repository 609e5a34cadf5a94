"""Tests of many measures at once whose few launches lend each other their variance.

Two or three launches hardly know how they vary; a dozen measures of the same launches do. The variance of each
measure is shrunk towards that of all (empirical Bayes: Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004). A measure
that varies far more than the others keeps its own variance (Phipson et al., Ann. Appl. Stat. 10, 2016).
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

ALPHA: Final = 0.05
"""False discovery rate of all comparisons together."""


def beyond(t: npt.ArrayLike, freedom: npt.ArrayLike) -> Vector:
    """Return the probability that Student's t is larger than ``t`` >= 0; NaN where ``freedom`` is."""
    from scipy.special import stdtr  # late: ranks do not need it

    return np.asarray(stdtr(freedom, np.negative(t)), np.float64)


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


def difference(vectors: Sequence[Vector], other: Sequence[Vector]) -> Difference:
    """Compare the means of two samples per comparison (Welch, Biometrika 34, 1947).

    ``vectors``, ``other``: one vector per comparison. A side of one value takes the other side's variance, and the
    test is Student's; two sides of one value have no error.
    """
    pairs = list(zip(vectors, other, strict=True))
    counts = np.array([[len(a), len(b)] for a, b in pairs], np.float64).reshape(-1, 2)
    means = np.array([[a.mean(), b.mean()] for a, b in pairs]).reshape(-1, 2)
    variances = np.array([[_variance(a), _variance(b)] for a, b in pairs]).reshape(-1, 2)
    filled = np.where(np.isnan(variances), variances[:, ::-1], variances)
    squares = filled / counts
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
    vector, indices = np.full(len(p), np.nan), np.flatnonzero(~np.isnan(p))
    descending = indices[np.argsort(-p[indices], kind="stable")]
    scaled = p[descending] * (len(indices) / np.arange(len(indices), 0, -1))
    vector[descending] = np.minimum.accumulate(np.minimum(scaled, 1))
    return vector


FAR: Final = 5.0
"""Robust standard deviations without a launch that set a group of launches apart."""
FEW: Final = 6
"""One of so many launches of both sides together, at most, are outliers; more are another state."""
FLOOR: Final = 2.0
"""Degrees of freedom of the upper quartile of variances, with which a smaller variance is raised."""
POWER: Final = 0.8
"""Probability with which the smallest visible change is found."""
DRAWS: Final = 10_000
"""Simulated tests behind the smallest visible change."""
SHRINK_ABOVE: Final = 0.01
"""Probability of a variance from which on it is shrunk; a rarer one keeps its own value."""
MIN_DRIFT: Final = 3
"""Launches in a row, at least, whose order is looked at: two are equally far from their mean, in any order."""
CORRELATIONS: Final = np.linspace(0, 0.9, 19)
"""Correlations of neighbours that are looked at."""
RARE: Final = 3
"""A correlation r of neighbours is expected with a density of (1 - r)^RARE: launches are mostly independent."""
CREDIBLE: Final = 0.9
"""Probability with which the correlation is not above the one that intervals allow for."""
DECIDED: Final = 3.24
"""Standard errors within the limit with which 80 % of intervals are within it, if nothing changed."""


class Group(NamedTuple):
    """Launches of one measure that a gap sets apart from the others: the smaller group of both sides together."""

    factor: float
    """Geometric mean of their times / mean of the others; above 1 they are slow."""
    counts: tuple[int, int]
    """Of the baseline and of the candidate."""
    sizes: tuple[int, int]
    """All launches of the baseline and of the candidate."""

    @property
    def few(self) -> bool:
        """True for outliers: means leave them out, of both sides alike."""
        remain = min(size - count for size, count in zip(self.sizes, self.counts, strict=True))
        return sum(self.counts) <= sum(self.sizes) // FEW and remain > 0

    def p(self, side: int, *, least: bool = False) -> float:
        """Return the probability that chance gives a side so many slow launches or more (Fisher's exact test).

        ``least``: that of the most that it could have, which is the smallest p (Tarone, Biometrics 46, 1990).
        """
        from scipy.stats import hypergeom  # late: ranks do not need it

        slow = self.counts if self.factor > 1 else [self.sizes[n] - self.counts[n] for n in (0, 1)]
        number = min(sum(slow), self.sizes[side]) if least else slow[side]
        return float(hypergeom.sf(number - 1, sum(self.sizes), sum(slow), self.sizes[side]))


def _inflation(correlation: float, launches: Matrix) -> Matrix:
    """Return the variance of a mean by the one that it would have if launches were independent.

    The latter is too small, too: neighbours, which have a ``correlation``, differ less from their mean.
    """
    lags = np.arange(1, max(int(np.nanmax(launches)), 2))[:, None]
    weights = np.maximum(1 - lags / launches.ravel(), 0) * correlation**lags
    larger = 1 + 2 * weights.sum(axis=0).reshape(launches.shape)
    return np.asarray(np.maximum(larger * (launches - 1) / np.maximum(launches - larger, 0.5), 1.0))


def drift(*rows: Matrix) -> float:
    """Return the correlation of neighbouring launches that may be there, by the order of all measures.

    ``rows``: logarithms less their means, in units of their deviations, (measures, launches in a row) each, NaN
    where there is none. It is the bound of a posterior. The correlation of neighbours among n independent launches
    has the variance (n - 2)^2 / (n^2 (n - 1)) (Dufour & Roy, Biometrika 72, 1985), divided by the number of
    independent measures. Without three launches in a row only the prior is known.
    """
    belief = (1 - CORRELATIONS) ** RARE
    rows = tuple(np.nan_to_num(row) for row in rows if row.shape[1] >= MIN_DRIFT)
    square = sum(float((row**2).sum()) for row in rows)
    if square > 0:
        measures = _independent(np.concatenate(rows, axis=1), np.ones(len(rows[0])))
        counts = np.array([row.shape[1] for row in rows], np.float64)
        shown = sum(float((row[:, 1:] * row[:, :-1]).sum()) for row in rows) / square
        variance = ((counts - 1) * (counts - 2) ** 2 / counts**2).sum() / (counts - 1).sum() ** 2 / measures
        belief *= np.exp(-((shown - _expected(counts)) ** 2) / (2 * variance))
    return float(np.interp(CREDIBLE * belief.sum(), belief.cumsum() - belief / 2, CORRELATIONS))


def _expected(counts: Matrix) -> Vector:
    """Return the correlation of neighbours among launches less their means for each true one."""
    sums = np.zeros((len(CORRELATIONS), 2))
    for number in counts.astype(int):
        centre = np.eye(number) - 1 / number
        lags = np.abs(np.subtract.outer(np.arange(number), np.arange(number)))
        for row, correlation in enumerate(CORRELATIONS):
            residuals = centre @ correlation**lags @ centre
            sums[row] += np.trace(residuals, 1), np.trace(residuals)
    return np.asarray(sums[:, 0] / sums[:, 1], np.float64)


class Moderated(NamedTuple):
    """Result of :func:`moderated`, per measure."""

    difference: Difference
    groups: list[Group | None]
    """Launches apart from the others; None without any."""
    means: Matrix
    """(measures, 2): without outliers."""
    counts: Matrix
    """(measures, 2): values without outliers."""
    drift: float
    """See :func:`drift`."""


def moderated(
    baseline: Matrix, candidate: Matrix, between: float, *, ordered: bool = False, paired: bool = False
) -> Moderated:
    """Compare the means of each measure.

    ``baseline``, ``candidate``: logarithms, (measures, launches or jobs), NaN where there is none.
    ``between``: standard deviation between jobs if each side is one job, which its launches do not show.
    ``ordered``: columns are in the order of time. ``paired``: so are those of both sides, in turn; the effect that
    the two of a column share is taken out.
    """
    values = np.concatenate([baseline, candidate], axis=1)
    later = np.arange(values.shape[1]) >= baseline.shape[1]
    groups: list[Group | None] = []
    for row, scale in zip(values, _scales(baseline, candidate), strict=True):
        apart = _apart(row, later, FAR * scale)
        groups.append(_group(row, later, apart) if len(apart) else None)
        if groups[-1] and groups[-1].few:
            row[apart] = np.nan
    sides = values[:, ~later], values[:, later]
    if paired:
        shared = (sides[0] + sides[1]) / 2
        shared -= np.nanmean(shared, axis=1)[:, None]
        sides = sides[0] - shared, sides[1] - shared
    counts = np.stack([np.isfinite(side).sum(axis=1) for side in sides], axis=1)
    means = np.stack([np.nanmean(side, axis=1) for side in sides], axis=1)
    residuals = [side - means[:, [n]] for n, side in enumerate(sides)]
    own_freedom = counts[:, 0] - 1.0 if paired else counts.sum(axis=1) - 2.0
    variance, freedom = moderated_variances(np.concatenate(residuals, axis=1), own_freedom)
    deviation = np.sqrt(np.maximum(variance, 1e-300))[:, None]
    correlation = drift(*(side / deviation for side in residuals)) if ordered and not paired else 0.0
    inflation = _inflation(correlation, counts)
    noise = variance * (inflation / counts).sum(axis=1)
    if baseline.shape[1] != candidate.shape[1]:  # only then an unequal variance of the smaller side matters
        smaller = int(candidate.shape[1] < baseline.shape[1])
        wider, wider_freedom = moderated_variances(residuals[smaller], counts[:, smaller] - 1.0)
        larger = wider > variance
        noise += np.where(larger, wider - variance, 0.0) * inflation[:, smaller] / counts[:, smaller]
        freedom = np.where(larger, wider_freedom, freedom)
    square = noise + 2 * between**2
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.where(noise > 0, freedom * (square / noise) ** 2, freedom)  # Satterthwaite; between is known
    return Moderated(
        Difference(means[:, 1] - means[:, 0], np.sqrt(square), freedom), groups, means, counts, correlation
    )


def _scales(*sides: Matrix) -> Matrix:
    """Return the median distance from the side's median, of a measure or of all measures if that is larger."""
    together = np.concatenate([np.abs(side - np.nanmedian(side, axis=1)[:, None]) for side in sides], axis=1)
    apart = np.greater(together, 0)
    scales = 1.4826 * np.nanmedian(np.where(apart | ~apart.any(axis=1, keepdims=True), together, np.nan), axis=1)
    return np.maximum(scales, np.median(scales))


def _apart(row: Matrix, later: Flags, gap: float) -> npt.NDArray[np.intp]:
    """Return the launches beyond the first gap from the median, the slow ones rather than the fast ones.

    The sides are not looked at, so that a difference between them is no artefact of the choice; but a gap that
    separates one side from the other is a change, not two groups.
    """
    order = np.argsort(row)[: np.isfinite(row).sum()]
    number = len(order)
    wide = np.flatnonzero(np.diff(row[order]) > gap) + 1
    slow = [order[first:] for first in wide if 2 * first >= number]
    fast = [order[:first] for first in wide[::-1] if 2 * first < number]
    for group in (*slow, *fast):
        others = np.setdiff1d(order, group)
        if len({*later[group]}) + len({*later[others]}) > 2:
            return group
    return order[:0]


def _group(row: Matrix, later: Flags, apart: npt.NDArray[np.intp]) -> Group:
    finite = np.isfinite(row)
    inside = np.isin(np.arange(len(row)), apart)
    factor = math.exp(min(float(row[inside].mean() - row[finite & ~inside].mean()), 700.0))
    counts, sizes = ((int((which & ~later).sum()), int((which & later).sum())) for which in (inside, finite))
    return Group(factor, counts, sizes)


def moderated_variances(residuals: Matrix, freedom: Matrix) -> tuple[Matrix, Matrix]:
    """Return variances and their degrees of freedom; ``residuals``: (measures, values).

    ``freedom``: degrees of freedom of each measure by itself.
    A variance below the upper quartile of all is raised towards it: launches that happen to be in one state of two
    on either side have a small variance, while other measures show the states.
    """
    from scipy.special import chdtri, fdtrc, polygamma, psi  # late: ranks do not need it

    freedom = np.where(freedom > 0, freedom, np.nan)
    variance = np.nansum(residuals**2, axis=1) / freedom
    usable = variance > 0
    if usable.sum() < 2:
        return variance, freedom
    s, d = variance[usable], freedom[usable]
    logarithms = np.log(s) - psi(d / 2) + np.log(d / 2)
    typical = logarithms[logarithms <= np.median(logarithms) + 3 * np.sqrt(polygamma(1, d / 2))]  # no outliers
    if len(typical) < 2:
        return variance, freedom
    spread = float(typical.var(ddof=1)) - float(polygamma(1, d / 2).mean())
    half = (1 + math.sqrt(1 + 2 * spread)) / (2 * spread) if spread > 0 else 1e6  # inverse trigamma
    prior = math.exp(float(typical.mean()) + float(psi(half)) - math.log(half))
    strength = min(2 * half, max(_independent(residuals[usable], s) * float(d.mean()) - float(d.mean()), 0))
    shrunk = (strength * prior + freedom * variance) / (strength + freedom)
    alone = (
        fdtrc(freedom, max(2 * half, 1), variance / prior) < SHRINK_ABOVE
        if strength
        else np.full(len(freedom), True)
    )
    quartile = float(
        np.quantile(s / (chdtri(d, 0.25) / d), 0.75, method="lower")
    )  # that of chi-squared variances is 1
    raised = np.where(variance < quartile, (FLOOR * quartile + freedom * variance) / (FLOOR + freedom), 0.0)
    moderate = np.maximum(np.where(alone, variance, shrunk), raised)
    return moderate, np.where(alone, freedom, freedom + strength)


def _independent(residuals: Matrix, variance: Matrix) -> float:
    """Return the number of independent variances: effects that measures of a launch share leave few.

    The mean of M variances of values with the correlation r has the variance of M / (1 + (M - 1) r^2).
    """
    scaled = residuals / np.sqrt(variance)[:, None]
    number = np.maximum(np.isfinite(scaled).sum(axis=0), 1)
    of_mean = float(
        (np.nansum(scaled, axis=0) ** 2 / number).sum() / (np.nansum(scaled**2, axis=0) / number).sum()
    )
    together = max(2.0, float(number.max()))
    r = max(0.0, (of_mean - 1) / (together - 1))
    return len(variance) / (1 + (together - 1) * r**2)


def needed(differences: Difference, counts: Matrix, limit: float) -> Vector:
    """Return the values a side with which 80 % of the intervals would be within the limit if nothing changed.

    ``counts``: (comparisons, 2), values of both sides of which the errors are.
    """
    variance = differences.error**2 / (1 / counts).sum(axis=1)
    return np.asarray(np.ceil(2 * variance * (DECIDED / limit) ** 2), np.float64) if limit else variance + np.inf


def smallest_visible(differences: Difference, minimum: float, comparisons: int = 1) -> Matrix:
    """Return the smallest true difference of each comparison that would be found with probability :data:`POWER`.

    It is found if p < 0.05 / ``comparisons``, which Benjamini and Hochberg ask of one that differs alone, and the
    difference is larger than ``minimum``. Samples are normal; their variance is estimated by the standard error,
    corrected to be median-unbiased (Wilson & Hilferty, PNAS 17, 1931). Few values estimate their own variance
    badly, and the closed form for a known one is too optimistic: tests are simulated, with a fixed seed.
    """
    result = np.full(len(differences.value), np.nan)
    freedom = np.minimum(np.maximum(np.floor(differences.freedom), 1), 1000)
    for number in np.unique(freedom[np.isfinite(freedom)]):
        chosen = freedom == number
        generator = np.random.default_rng(0)
        noise = generator.standard_normal(DRAWS)
        errors = np.sqrt(generator.chisquare(number, DRAWS) / number)
        threshold = upper(ALPHA / comparisons / 2, number) * errors
        error = differences.error[chosen] * (1 - 2 / (9 * number)) ** -1.5
        least = np.array([minimum / row if row > 0 else 0.0 for row in error])
        needed = [np.quantile(np.maximum(threshold, row) - noise, POWER) for row in least]
        result[chosen] = np.where(error > 0, np.array(needed) * error, minimum)
    return result
