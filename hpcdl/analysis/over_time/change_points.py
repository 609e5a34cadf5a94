"""Change points of many series, each run judged with the runs before it alone.

A later run never alters an earlier finding: a nightly check and a check of the whole archive agree. Effects that
all series of a run share are left out first. Then, for each series and run, among the values since its last
change:

1. Place: the split with the largest t statistic, of values that are clipped to the usual scatter. Its variance
   takes into account the correlation of successive runs, and the usual variance of all series.
2. Evidence: Student's t, divided by the excess of the largest t statistics of all series over those of noise
   (empirical null: Efron, J. Am. Stat. Assoc. 99, 2004). Three values after the change agree.
3. False discovery control over the series of a run (Benjamini & Hochberg, J. R. Stat. Soc. B 57, 1995).

A series that rises twice to the same level has two states: changes between levels that it had are reported no
more.

:func:`calibrate` counts false alarms on an archive's own noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.statistics.differences import SERIES, usual_variance
from hpcdl.analysis.statistics.estimates import Interval, Vector, student_quantile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Matrix = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

BEFORE: Final = 10
"""Values before the first change of a series, at least."""
BEFORE_AGAIN: Final = 3
"""Values between two changes, at least; their variance is pooled with that of the segment before."""
AFTER: Final = 3
"""Values after a change, at least."""
RECENT: Final = 10
"""Runs without a value after which a series has ended."""
MIN_EFFECT: Final = 0.03
"""Smallest change that is reported, as a share."""
SAME_LEVEL: Final = 0.03
"""Largest difference of two levels, as a logarithm, that are one."""
FALSE_DISCOVERIES: Final = 0.001
"""Benjamini and Hochberg's share (chosen by simulation: tests/analysis/history_figures.py)."""
PROMISING: Final = 2.5
"""Least t statistic of a split that is examined further."""
CLIPPED: Final = 3.0
"""Standard deviations from the median beyond which a value is no usual one."""
MIN_DEVIATION: Final = 1e-4
"""Standard deviation of the logarithms, at least."""
LEVEL: Final = 20
"""Runs whose median is the level of a series, of which the effect of a run departs."""
LIMIT: Final = 2.5
"""Robust standard deviations of earlier effects beyond which an effect may be a change of all series."""
MAX_CORRELATION: Final = 0.95
"""Largest estimate: a correlation of 1 leaves no evidence at all."""


@dataclass(frozen=True)
class Change:
    """Change of one series."""

    series: int
    first: int
    """First run after the change."""
    found: int
    """Run that made the change significant."""
    p: float
    """Two-sided p value."""
    ratio: Interval
    """Values after by values before, with a 95 % interval; of all values between the neighbouring changes."""
    returned: bool
    """True if the series had the level after the change before."""
    before: float
    """Level before the change, as a logarithm."""
    now: float = math.nan
    """Level of the series, or its successor, in the end; NaN without a value in the last :data:`RECENT` runs."""

    @property
    def open(self) -> bool:
        """True for a change for the worse whose series has not returned to the level before."""
        size = math.log(self.ratio.value)
        return size > 0 and self.now - self.before > min(SAME_LEVEL, size / 2)


@dataclass
class _Series:
    """State of the search in one series."""

    cuts: tuple[int, ...] = ()
    """First runs after all changes, also those of predecessors."""
    levels: tuple[float, ...] = ()
    """Levels before the changes, as logarithms."""
    squares: float = 0.0
    """Sum of squares about the mean, of the segment before."""
    freedom: float = 0.0
    """Degrees of freedom of ``squares``."""
    two_states: bool = False


class _Search:
    """State of the search."""

    def __init__(self, logs: Matrix) -> None:
        self.values = without_job_effects(logs)
        """(series, runs)."""
        self.series = [_Series() for _ in logs]
        self.excess: list[float] = []
        """Square of the largest t statistics by that of noise, of each run so far."""

    def splits(self, rows: Counts, now: int) -> list[Change]:
        """Return the changes that the run ``now`` makes significant, of the series ``rows``, which it has."""
        from scipy.special import stdtr  # late: ranks do not need it

        states = [self.series[row] for row in rows]
        last = np.array([max(state.cuts, default=0) for state in states])[:, None]
        values = np.where(np.arange(now + 1) >= last, self.values[rows, : now + 1], np.nan)
        known = np.isfinite(values)
        departures = values - quantiles(values)[:, None]
        limit = CLIPPED * np.maximum(1.4826 * quantiles(np.abs(departures)), MIN_DEVIATION)[:, None]
        clipped = np.clip(departures, -limit, limit)
        variance, weight = usual_variance(clipped)
        squares = np.array([state.squares for state in states]) + variance * weight
        freedom = np.array([state.freedom for state in states]) + weight
        phi = autocorrelation(values[known.sum(axis=1) >= BEFORE])

        before = np.cumsum(known, axis=1) - known
        after = known.sum(axis=1)[:, None] - before
        fewest = np.where(last > 0, BEFORE_AGAIN, BEFORE)
        allowed = known & (before >= fewest) & (after >= AFTER)
        scale = variance_of_mean(phi, before) + variance_of_mean(phi, after)
        t = _student(np.nan_to_num(clipped), before, after, squares, freedom, scale)
        student = np.where(allowed, t, 0)
        tested = allowed.any(axis=1)
        excess = self._excess(student[tested], allowed[tested])
        points = []
        for row in np.flatnonzero(student.max(axis=1) > PROMISING):
            split = int(student[row].argmax())
            left, right = (_finite(part) for part in np.split(values[row], [split]))
            size = float(np.median(right) - np.median(left))
            agreeing = np.abs(right - np.median(right)) <= max(limit[row, 0], abs(size) / 4)
            if abs(size) >= math.log1p(MIN_EFFECT) and agreeing.sum() >= AFTER:
                degrees = freedom[row] + len(left) + len(right) - 2
                p = 2 * float(stdtr(degrees, -student[row, split] / math.sqrt(excess)))
                points.append((p, int(rows[row]), split))
        points.sort()
        passed = [
            number for number, (p, *_) in enumerate(points, 1) if p <= FALSE_DISCOVERIES * number / tested.sum()
        ]
        found = [self._restart(*point, now) for point in points[: max(passed, default=0)]]
        return [change for change in found if change]

    def _excess(self, student: Matrix, allowed: npt.NDArray[np.bool_]) -> float:
        """Return by how much the scatter of the t statistics exceeds that of noise, 1 for few series.

        The median over runs, so that a change of many series does not hide itself. Of the largest of k
        statistics of noise the square has the 90 % quantile 2.7 + 1.1 log(k) (simulated; noise of any kind gives
        0.7 to 1.2).
        """
        if len(student) >= SERIES:
            largest = float(np.quantile(student.max(axis=1), 0.9)) ** 2
            self.excess.append(largest / (2.7 + 1.1 * math.log(np.median(allowed.sum(axis=1)))))
        return max(1.0, float(np.median(self.excess))) if self.excess else 1.0

    def _restart(self, p: float, series: int, first: int, now: int) -> Change | None:
        """Go on with the values after a split; return the change, None between known levels of two states."""
        state = self.series[series]
        begin = max(state.cuts, default=0)
        old, new = (_finite(self.values[series, part]) for part in (slice(begin, first), slice(first, now + 1)))
        before, after = float(np.median(old)), float(np.median(new))
        returned = any(abs(level - after) <= SAME_LEVEL for level in state.levels)
        departures = usual(old) - usual(old).mean()
        self.series[series] = _Series(
            (*state.cuts, first),
            (*state.levels, before),
            float((departures**2).sum()),
            len(departures) - 1,
            state.two_states or (returned and after > before),
        )
        if returned and state.two_states:
            return None
        return Change(series, first, now, p, Interval(after - before, 0, 0), returned, before)

    def level_now(self, series: int) -> float:
        """Return the level of a series, as a logarithm."""
        return float(np.median(_finite(self.values[series, max(self.series[series].cuts, default=0) :])))


def change_points(logs: Matrix, predecessors: Mapping[int, int] | None = None) -> list[Change]:
    """Return the changes in ``logs`` (series, runs): logarithms of times in the order of the runs, NaN if missing.

    ``predecessors``: see :func:`joined`. Changes are in the order in which they were found.
    """
    predecessors = predecessors or {}
    whole = joined(logs, predecessors)
    search = _Search(whole)
    changes: list[Change] = []
    for now in range(logs.shape[1]):
        rows = np.flatnonzero(np.isfinite(logs[:, now]))
        for row in map(int, rows):
            if row in predecessors and not np.isfinite(logs[row, :now]).any():
                search.series[row] = replace(search.series[predecessors[row]])
        if len(rows) and now >= AFTER:
            changes += search.splits(rows, now)
    reported = []
    for change in changes:
        last = _successor(logs, change.series, predecessors)
        level = search.level_now(last) if np.isfinite(logs[last, -RECENT:]).any() else math.nan
        ratio = _ratio(whole[change.series], change.first, search.series[change.series].cuts)
        reported.append(replace(change, ratio=ratio, now=level))
    return reported


def _successor(logs: Matrix, series: int, predecessors: Mapping[int, int]) -> int:
    """Return the series that goes on with a series that has no value since the first one of its successor."""
    for row in (row for row, other in predecessors.items() if other == series):
        if not np.isfinite(logs[series, int(np.isfinite(logs[row]).argmax()) :]).any():
            return _successor(logs, row, predecessors)
    return series


def joined(logs: Matrix, predecessors: Mapping[int, int]) -> Matrix:
    """Return ``logs`` (series, runs) with the values of a series' predecessor before its own first value."""
    whole = logs.copy()
    for series in sorted(predecessors, key=lambda change: int(np.isfinite(logs[change]).argmax())):
        first = int(np.isfinite(logs[series]).argmax())
        whole[series, :first] = whole[predecessors[series], :first]
    return whole


def _student(
    values: Matrix, before: Counts, after: Counts, squares: Vector, freedom: Vector, scale: Matrix
) -> Matrix:
    """(series, values): absolute t statistic of a split before each value; missing values are 0.

    ``before``, ``after``: values on either side; ``scale``: variance of the difference of means of unit variance.
    """
    left = np.cumsum(values, axis=1) - values
    right = values.sum(axis=1)[:, None] - left
    with np.errstate(divide="ignore", invalid="ignore"):
        within = (values**2).sum(axis=1)[:, None] - left**2 / before - right**2 / after
        variance = np.maximum(within, 0) + squares[:, None]
        variance /= np.maximum(before + after - 2 + freedom[:, None], 1)
        scatter = np.sqrt(np.maximum(variance, MIN_DEVIATION**2) * scale)
        return np.asarray(np.abs(right / after - left / before) / scatter, np.float64)


def _finite(values: Vector) -> Vector:
    return values[np.isfinite(values)]


def _ratio(values: Vector, first: int, cuts: Sequence[int]) -> Interval:
    """Return the values since ``first`` by those before, of all between the neighbouring ones of ``cuts``."""
    begin = max([0, *(cut for cut in cuts if cut < first)])
    end = min([len(values), *(cut for cut in cuts if cut > first)])
    sides = [_finite(values[begin:first]), _finite(values[first:end])]
    before, after = (usual(side) if len(usual(side)) >= AFTER else side for side in sides)
    freedom = len(before) + len(after) - 2
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (before, after))
    error = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(after)))
    difference, reach = float(after.mean() - before.mean()), student_quantile(freedom, 0.95) * error
    return Interval(*(math.exp(bound) for bound in (difference, difference - reach, difference + reach)))


def usual(values: Vector) -> Vector:
    """Return the values that are no outliers: within :data:`CLIPPED` robust deviations of the median."""
    distance = np.abs(values - np.median(values))
    return values[distance <= max(CLIPPED * 1.4826 * float(np.median(distance)), MIN_DEVIATION)]


def quantiles(values: Matrix, share: float = 0.5) -> Vector:
    """Return the quantile of the known values of each row; NaN for a row without."""
    last = np.maximum(np.isfinite(values).sum(axis=1) - 1, 0)
    ordered = np.sort(values, axis=1)  # NaN last
    row, place = np.arange(len(values)), share * last
    low, part = place.astype(np.int64), place % 1
    return np.asarray(ordered[row, low] * (1 - part) + ordered[row, np.minimum(low + 1, last)] * part, np.float64)


def autocorrelation(values: Matrix) -> float:
    """Return the lag-1 correlation that all series have in common, 0 to 0.95; 0 without pairs of runs.

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
    return float(np.clip((phi + 1 / runs) / (1 - 3 / runs), 0, MAX_CORRELATION))


def variance_of_mean(phi: float, count: Counts) -> Vector:
    """Return the variance of means of ``count`` successive values of variance 1 with lag-1 correlation ``phi``.

    Of an autoregressive process of first order; infinity for no value.
    """
    n = np.maximum(count, 1)
    inflation = (1 + phi) / (1 - phi) - 2 * phi * (1 - phi**n) / (n * (1 - phi) ** 2)
    return np.where(count > 0, inflation / n, np.inf)


def without_job_effects(logs: Matrix) -> Matrix:
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
            middle = float(np.median(recent))
            deviation = 1.4826 * float(np.median(np.abs(recent - middle)))
            if abs(effect - middle) <= LIMIT * deviation:
                cleaned[:, run] -= effect
        effects.append(effect)
    return cleaned


BLOCK: Final = 5
"""Runs that stay together, so that noise which lasts for some runs does so when shuffled."""


class Calibration(NamedTuple):
    """False alarms in shuffled runs."""

    rounds: int
    regressed: float
    """Events per 100 runs without a change in which series became slower."""
    improved: float
    """Events per 100 runs without a change in which series became faster."""


def calibrate(logs: Matrix, changes: Sequence[Change], *, rounds: int = 10, seed: int = 0) -> Calibration:
    """Shuffle blocks of the runs of ``logs`` (series, runs), without their ``changes``, and search them.

    All series have the same shuffle, so that common effects of a run stay together.
    """
    residuals, generator = logs.copy(), np.random.default_rng(seed)
    runs = logs.shape[1]
    for row in range(len(logs)):
        cuts = sorted(change.first for change in changes if change.series == row)
        for begin, end in zip([0, *cuts], [*cuts, runs], strict=True):
            level = residuals[row, begin:end]
            if np.isfinite(level).any():
                level -= np.nanmedian(level)
    blocks = np.array_split(np.arange(runs), max(1, runs // BLOCK))
    false = {True: 0, False: 0}
    for _ in range(rounds):
        order = np.concatenate([blocks[block] for block in generator.permutation(len(blocks))])
        for _, slower in {(change.found, change.ratio.value > 1) for change in change_points(residuals[:, order])}:
            false[slower] += 1
    scale = 100 / (rounds * runs)
    return Calibration(rounds, false[True] * scale, false[False] * scale)
