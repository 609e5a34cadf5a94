"""One rule for two sides: is the first less than the other, more, equal, or is it not decided?

A side has one number for each launch (or job), or for each seed; repetitions of one launch are no units. Units
that two sides share are paired if the pairs have two degrees of freedom, seeds always; other sides are compared by
Welch's test (Biometrika 34, 1947). Quotients are compared by logarithms. Few launches hardly know how they vary:
the variance of their pairs is drawn towards that of all sides of the family, which counts as up to four degrees of
freedom, and is never below their own. So two sides alone are paired from three launches on.

Several comparisons are judged together. The interval of each has the level 1 - 0.05 R / m, with R of m decided
(false coverage rate: Benjamini & Yekutieli, JASA 100, 2005), and a comparison is decided if its interval excludes
the limit: of equal sides at most 5 % of such judgements have a decided one. Where the first of a family was chosen
as the best of k, all its k (k - 1) / 2 pairs count as compared.
"""

import math
import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from typing import Final, Literal, NamedTuple

import numpy as np

from hpcdl.analysis.statistics.differences import Difference, Vector, adjusted, beyond, difference, upper
from hpcdl.analysis.statistics.estimates import NOTHING, Interval, bounded_exp

LEVEL: Final = 0.95
"""Confidence of an interval."""
MIN_FREEDOM: Final = {"launch": 2, "seed": 1}
"""Degrees of freedom of pairs, at least."""
PRIOR: Final = 4.0
"""Degrees of freedom of the family's variance, at most."""
SAME: Final = 0.01
"""Relative difference of simulated times that counts as none: no model of a network is better."""
CHANCE_OF_VOTES: Final = 1 / 32
"""Probability with which seeds vote by chance, at most: 5 of 5, 9 of 10 or 10 of 12."""

Unit = Literal["launch", "seed"]
Word = Literal["less", "more", "equal", "open"]
Reason = Literal["", "chance", "disturbed", "one launch", "one seed", "unknown"]
CHANCE: Final[Reason] = "chance"
ONE: Final[Mapping[Unit, Reason]] = {"launch": "one launch", "seed": "one seed"}


@dataclass(frozen=True)
class Side:
    """Values of one side by unit."""

    values: Mapping[Hashable, float]
    """By launch or seed; infinite: a seed has diverged."""
    unit: Unit = "launch"
    exact: bool = False
    """True if nothing about the number is random; the first value counts."""
    disturbed: bool = False
    """True if other load disturbed all launches."""

    @property
    def middle(self) -> float:
        """Median over units; NaN without any."""
        return float(np.median([*self.values.values()])) if self.values else math.nan


@dataclass(frozen=True)
class Judged:
    """The first side against another one."""

    size: Interval
    """Quotient of the first / the other, or difference; bounds are NaN if the units do not tell any."""
    word: Word
    """The first is less or more, both are equal by definition or model, or nothing is decided."""
    reason: Reason = ""
    """Why it is open."""
    alone: Interval = NOTHING
    """With the 95 % interval of this comparison alone."""
    p: float = math.nan
    """Two-sided, adjusted for the number of comparisons (Benjamini & Hochberg)."""
    quotient: bool = True
    """True for a quotient, False for a difference."""
    votes: str = ""
    """``5 of 5``: seeds on the side of the verdict, if one has diverged."""

    @property
    def swapped(self) -> "Judged":
        """The other side against the first."""
        opposite: dict[Word, Word] = {"less": "more", "more": "less"}
        turn = (lambda bound: 1 / bound if bound else math.inf) if self.quotient else operator.neg
        value, low, high = map(turn, self.size)
        word = opposite.get(self.word, self.word)
        return replace(self, size=Interval(value, high, low), word=word, alone=NOTHING)


@dataclass(frozen=True)
class Comparison:
    """Two sides with the error of their difference, of logarithms for a quotient."""

    value: float
    """Quotient of medians, or the mean difference of pairs, else the difference of medians."""
    quotient: bool
    test: Difference
    """Of one comparison."""
    sizes: tuple[float, ...] = ()
    """Quotients or differences of the shared units, which vote: one has diverged."""

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the interval, which contains the value: medians may be beyond that of means."""
        if not self.test.error.any():  # without the rounding of logarithms
            return Interval(self.value, self.value, self.value)
        low, high = (float(bound[0]) for bound in self.test.bounds(level))
        if self.quotient:
            low, high = bounded_exp(low), bounded_exp(high)
        return Interval(self.value, min(low, self.value), max(high, self.value))

    def p(self, limit: float) -> float:
        """Return the two-sided p-value of a limit."""
        at = math.log(limit) if self.quotient else limit
        return float(self.test._replace(value=self.test.value - at).p[0])


Spread = tuple[float, float]
"""Variance of a value of a family, and the degrees of freedom that it counts as."""
UNKNOWN: Final = Difference(np.array([math.nan]), np.array([math.nan]), np.array([math.nan]))


def compare(
    first: Side, other: Side, spread: Spread = (math.nan, 0.0), *, quotient: bool = True, vote: bool = False
) -> Comparison:
    """Compare two sides; units vote if one has an infinite value, or if they shall ``vote``."""
    sides = [_broadcast(first, other), _broadcast(other, first)]
    shared = [key for key in sides[0] if key in sides[1]]
    paired = len(shared) > 1 and len(shared) - 1 + spread[1] >= MIN_FREEDOM[first.unit]
    if vote or any(math.isinf(value) for side in sides for value in side.values()):
        sizes = tuple(_size(sides[0][key], sides[1][key], quotient=quotient) for key in shared)
        return Comparison(float(np.median(sizes or [math.nan])), quotient, UNKNOWN, sizes)
    values = [np.array([*side.values()]) for side in sides]
    if not all(map(len, values)) or (quotient and any((side <= 0).any() for side in values)):
        return Comparison(math.nan, quotient, UNKNOWN)
    medians = [float(np.median(side)) for side in values]
    value = medians[0] / medians[1] if quotient else medians[0] - medians[1]
    if paired:
        pairs = np.array([[side[key] for key in shared] for side in sides])
        changes = np.subtract(*(np.log(pairs) if quotient else pairs))
        test = _shrunk(changes, spread)
        if first.unit == "seed":
            value = bounded_exp(float(test.value[0])) if quotient else float(test.value[0])
    elif first.exact and other.exact:
        test = Difference(*(np.array([number]) for number in (math.log(value) if quotient else value, 0.0, 1.0)))
    elif min(map(len, values)) > 1:
        logs = [np.log(side) for side in values] if quotient else values
        test = difference(logs[1:], logs[:1])
    else:
        test = UNKNOWN
    return Comparison(value, quotient, test)


def _broadcast(side: Side, other: Side) -> Mapping[Hashable, float]:
    """Return the values of a side; an exact one has its value in every unit of the other."""
    return dict.fromkeys(other.values, side.middle) if side.exact and not other.exact else side.values


def _size(first: float, other: float, *, quotient: bool) -> float:
    if first == other:  # two infinite values are equal
        return 1.0 if quotient else 0.0
    return (first / other if other else math.inf) if quotient else first - other


def _shrunk(changes: Vector, spread: Spread) -> Difference:
    """Return the mean of paired changes with its error."""
    variance, freedom = float(changes.var(ddof=1)), len(changes) - 1.0
    of_all, weight = spread
    if weight > 0:
        variance = max(variance, (weight * 2 * of_all + freedom * variance) / (weight + freedom))
        freedom += weight
    return Difference(*(np.array([n]) for n in (changes.mean(), math.sqrt(variance / len(changes)), freedom)))


def _spread(sides: Sequence[Side], *, quotient: bool) -> Spread:
    """Return the variance of values without the effects that all sides share, and its degrees of freedom.

    The residuals of a table of sides and units have (sides - 1) (units - 1) degrees of freedom. A pair has
    units - 1 of these: with two sides nothing is left.
    """
    random = [side.values for side in sides if len(side.values) > 1 and not (side.exact or side.disturbed)]
    units = [key for key in random[0] if all(key in values for values in random)] if random else []
    table = np.array([[values[key] for key in units] for values in random])
    if sides[0].unit == "seed" or len(random) < 3 or len(units) < 2 or not np.isfinite(table).all():
        return math.nan, 0.0
    if quotient and (table <= 0).any():
        return math.nan, 0.0
    table = np.log(table) if quotient else table
    residuals = table - table.mean(axis=0) - table.mean(axis=1)[:, None] + table.mean()
    freedom = (len(random) - 1) * (len(units) - 1)
    return float((residuals**2).sum() / freedom), min(PRIOR, freedom - len(units) + 1.0)


def judge(
    families: Sequence[Sequence[Side]],
    *,
    quotient: bool = True,
    limit: float | None = None,
    level: float = LEVEL,
    chosen: bool = False,
    tolerance: float = 0.0,
) -> list[list[Judged]]:
    """Return for each family the first side against each other one; all families are judged together.

    ``limit``: of the quotient or difference, 1 or 0 unless stated. ``chosen``: the first is the best of a family.
    ``tolerance``: relative difference of exact values that counts as none, such as :data:`SAME`.
    """
    equal = 1.0 if quotient else 0.0
    at = equal if limit is None else limit
    compared, further = list[list[Comparison]](), list[float]()
    for first, *others in families:
        spread = _spread([first, *others], quotient=quotient)
        compared.append([compare(first, other, spread, quotient=quotient) for other in others])
        rivals = combinations(others, 2) if chosen else ()
        further += [compare(*pair, spread, quotient=quotient).p(equal) for pair in rivals if _is_random(*pair)]
    pairs = [(sides[0], other) for sides in families for other in sides[1:]]
    comparisons = [one for some in compared for one in some]
    tests = [one.p(at) if _is_random(*pair) else math.nan for one, pair in zip(comparisons, pairs, strict=True)]
    p = adjusted(np.array([*tests, *further]))
    number, decided = np.isfinite(p).sum(), (p < 1 - level).sum()
    wide = 1 - (1 - level) * max(decided, 1) / max(number, 1)
    judged = [
        _exact(one, at, tolerance) if first.exact and other.exact else _judged(first, other, one, chance, at, wide)
        for (first, other), one, chance in zip(pairs, comparisons, p.tolist(), strict=False)
    ]
    ends = np.cumsum([0, *map(len, compared)]).tolist()
    return [judged[begin:end] for begin, end in pairwise(ends)]


def _is_random(first: Side, other: Side) -> bool:
    return not (first.disturbed or other.disturbed or (first.exact and other.exact))


def _exact(one: Comparison, limit: float, tolerance: float) -> Judged:
    value = one.value
    word: Word = "equal" if abs(value - limit) <= tolerance * abs(limit) else "less" if value < limit else "more"
    if not math.isfinite(value):
        return Judged(NOTHING, "open", "unknown")
    size = Interval(value, value, value)
    return Judged(size, word, alone=size, quotient=one.quotient)


def outvote(votes: int, every: int, comparisons: int = 1) -> bool:
    """Return True if so many of all votes are on one side by chance in at most 1 of 32 x ``comparisons`` cases."""
    from scipy.special import bdtrc  # late: ranks do not need it

    return bool(bdtrc(votes - 1, every, 0.5) <= CHANCE_OF_VOTES / comparisons)


def _judged(first: Side, other: Side, one: Comparison, p: float, limit: float, level: float) -> Judged:
    size, alone, every = one.interval(level), one.interval(), len(one.sizes)
    less, more = (sum(of_limit(each, limit) for each in one.sizes) for of_limit in (operator.lt, operator.gt))
    decided, reason = size.high < limit or size.low > limit, CHANCE
    if first.disturbed or other.disturbed:
        decided, reason = False, "disturbed"
    elif every:
        decided = outvote(max(less, more), every)
    elif math.isnan(size.low):
        few = min(len(side.values) for side in (first, other) if not side.exact)
        reason = ONE[first.unit] if few == 1 else "unknown"
    is_less = less > more if every else size.value < limit
    word: Word = "open" if not decided else "less" if is_less else "more"
    votes = f"{max(less, more)} of {every}" if every else ""
    return Judged(size, word, "" if decided else reason, alone, p, one.quotient, votes)


FAR: Final = 1e3
"""Logarithm of a bound that is none."""
WIDEST: Final = math.log(1e6)
"""Largest difference of means that is looked at."""
SHARPEST: Final = 1e3
"""Largest inverse of the standard deviation."""


class Times(NamedTuple):
    """Logarithms of the bounds of a sample."""

    low: Vector
    high: Vector
    """Infinite: not reached."""


class Delay:
    """Delay of the second sample of times relative to the first, each known between two bounds.

    A time without an upper bound is censored: the event had not come when the observation ended. Logarithms are
    normal, with one standard deviation for both samples (Tobin, Econometrica 26, 1958; Burridge, J. R. Statist.
    Soc. B 43, 1981). The ratio of the likelihoods with two means and with one gives t: for times that are known
    exactly it is Student's. Only events count for its degrees of freedom.
    """

    def __init__(self, first: Times, second: Times) -> None:
        """Fit both samples. Each has at least two times."""
        group = np.repeat([0, 1], [len(first.low), len(second.low)])
        high = np.concatenate([first.high, second.high]).clip(-FAR, FAR)
        low = np.concatenate([first.low, second.low]).clip(-FAR, FAR)
        self._group, self._low, self._high = group, np.minimum(low, high - 1e-6), high
        self._largest, (before, after, sharpness) = _fit(self._low, self._high, group)
        self.value = min(max((after - before) / sharpness, -WIDEST), WIDEST)
        """Difference of the mean logarithms."""
        self._events = max(3, int((high < FAR).sum()))
        times = np.where(high < FAR, high, low)
        sides = times[group == 0], times[group == 1]
        welch = difference([sides[0]], [sides[1]])
        squares = sum(float(side.var() * len(side)) for side in sides) / (len(group) - 2)
        pooled = math.sqrt(squares * sum(1 / len(side) for side in sides))
        self._factor = max(1.0, float(welch.error[0]) / pooled) if pooled else 1.0  # the smaller side varies more
        self._freedom = min(self._events - 2.0, float(welch.freedom[0]))

    def _statistic(self, shift: float) -> float:
        """Return twice the logarithm of the likelihoods' ratio for a difference of the means."""
        moved = np.where(self._group == 1, shift, 0.0)
        equal, _ = _fit(self._low - moved, self._high - moved, np.zeros_like(self._group))
        return max(2 * (self._largest - equal), 0.0)

    @cached_property
    def p(self) -> float:
        """Two-sided p-value of equal means."""
        ratio = math.expm1(self._statistic(0.0) / self._events)
        t = math.sqrt((self._events - 2) * ratio) / self._factor
        return 2 * float(beyond(t, self._freedom))

    def bounds(self) -> tuple[float, float]:
        """Return the 95 % interval of the difference; infinite where the samples do not limit it."""
        t = self._factor * float(upper(0.025, self._freedom))
        limit = self._events * math.log1p(t**2 / (self._events - 2))
        ends = []
        for end in (-WIDEST, WIDEST):
            inside, outside = self.value, end
            if self._statistic(outside) < limit:
                ends.append(math.copysign(math.inf, end))
                continue
            for _ in range(20):
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if self._statistic(middle) < limit else (inside, middle)
            ends.append(inside)
        return ends[0], ends[1]


def _fit(low: Vector, high: Vector, group: Vector) -> tuple[float, Vector]:
    """Return the largest log-likelihood, each group's mean by the standard deviation, and the latter's inverse.

    The likelihood is concave in these parameters: Newton's method.
    """
    columns = -np.eye(int(group.max()) + 1)[group]
    times = np.where(high < FAR, high, low)
    spread = max(float(times.std()), float(np.median(high - low)) if (high - low).max() < FAR else 0.0, 0.01)
    means = [times[group == number].mean() for number in range(columns.shape[1])]
    parameters = np.array([*means, 1.0]) / spread
    value, slope, curvature = _likelihood(low, high, columns, parameters)
    for _ in range(60):
        ridge = 1e-9 * max(1.0, np.abs(curvature).max()) * np.eye(len(parameters))
        step = np.linalg.solve(curvature - ridge, -slope)
        length = min(1.0, -0.9 * parameters[-1] / step[-1]) if step[-1] < 0 else 1.0
        while True:
            new = parameters + length * step
            new *= min(1.0, SHARPEST / new[-1])
            next_value, slope, curvature = _likelihood(low, high, columns, new)
            if next_value >= value - 1e-12 or length < 1e-8:
                break
            length /= 2
        gain, value, parameters = next_value - value, next_value, new
        if gain < 1e-8:
            break
    return value, parameters


def _likelihood(low: Vector, high: Vector, columns: Vector, parameters: Vector) -> tuple[float, Vector, Vector]:
    """Return the log-likelihood, its gradient and its second derivatives."""
    from scipy.special import log_ndtr  # late: ranks do not need it

    below, above = (np.column_stack([columns, bound]) for bound in (low, high))
    start, end = below @ parameters, above @ parameters
    left = start + end < 0  # of the far tail only the logarithm is exact
    larger = log_ndtr(np.where(left, end, -start))
    smaller = log_ndtr(np.where(left, start, -end))
    inside = larger + np.log1p(-np.exp(np.minimum(smaller - larger, -1e-12)))
    densities = (np.exp(-(z**2) / 2 - math.log(2 * math.pi) / 2 - inside) for z in (start, end))
    at_start, at_end = (density[:, None] for density in densities)
    slopes = at_end * above - at_start * below
    curved = (at_start * start[:, None] * below).T @ below - (at_end * end[:, None] * above).T @ above
    return float(inside.sum()), slopes.sum(axis=0), curved - slopes.T @ slopes
