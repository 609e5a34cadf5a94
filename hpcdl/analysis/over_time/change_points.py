"""Change points of many series, each run judged with the runs before it alone.

A later run never alters an earlier finding: a nightly check and a check of the whole archive agree. Effects that
all series of a run share are left out first. Then, for each series and run, among the values since its last
change, of the last :data:`WINDOW` runs at most:

1. Place: the split with the largest t statistic, of values whose single outliers are clipped. Its variance takes
   into account the usual variance of all series.
2. Evidence: a change is large against all that the series did before, as a multiple of the largest departure of as
   many runs, and most runs after it agree. Of three or four runs each departs more than any run before.
3. A change of five runs or more that is no multiple of the robust deviation is less certain where all series
   wander: t is divided by the excess of their largest statistics over those of noise (empirical null: Efron,
   J. Am. Stat. Assoc. 99, 2004).
4. False discovery control over the series of a run (Benjamini & Hochberg, J. R. Stat. Soc. B 57, 1995).

A change with fewer than ten runs before it is an unstable start. A series that rises twice to the same level has
two states: changes between levels that it had are reported no more.

:func:`calibrate` counts false alarms on an archive's own noise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.statistics.differences import SERIES, usual_variance
from hpcdl.analysis.statistics.estimates import Interval, Vector, student_quantile

Matrix = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

BEFORE: Final = 10
"""Values that make a level; a change with fewer before it is an unstable start."""
BEFORE_FIRST: Final = 5
"""Values before an unstable start, at least."""
BEFORE_AGAIN: Final = 3
"""Values between two changes, at least; their variance is pooled with that of the segment before."""
AFTER: Final = 3
"""Values after a change, at least."""
LASTING: Final = 5
"""Values after a change whose mean counts; with fewer, each value counts."""
RECORD: Final = 1.5
"""Least size of a change by the largest departure before it of as many runs."""
SINGLE_RECORD: Final = 2.0
"""Least departure of single runs by the largest of any run before."""
NOISIER: Final = 1.6
"""Largest standard deviation after a change by that before it: a burst of noise is no change."""
AGREEING: Final = 0.75
"""Least share of the values after a change that are beyond half its size."""
LARGE: Final = 3.0
"""Robust deviations of the :data:`LEVEL` runs before beyond which the empirical null does not matter."""
RECENT: Final = 10
"""Runs without a value after which a series has ended."""
MIN_EFFECT: Final = 0.03
"""Smallest change that is reported, as a share."""
WINDOW: Final = 400
"""Runs that are examined for a change, at most: a year of nights; the time of a search grows as the runs."""
FAR: Final = 0.1
"""Departure of the newest runs, as a share, beyond which a series waits for the next runs."""
SAME_LEVEL: Final = 0.03
"""Largest difference of two levels, as a logarithm, that are one."""
FALSE_DISCOVERIES: Final = 1e-4
"""Benjamini and Hochberg's share (chosen by simulation: tests/analysis/history_figures.py)."""
PROMISING: Final = 2.5
"""Least t statistic of a split that is examined further."""
CLIPPED: Final = 4.0
"""Robust deviations from the median of five neighbours beyond which a value is clipped."""
MIN_DEVIATION: Final = 1e-4
"""Standard deviation of the logarithms, at least."""
LEVEL: Final = 20
"""Runs whose median is the level of a series, of which the effect of a run departs."""
LIMIT: Final = 2.5
"""Robust standard deviations of earlier effects beyond which an effect may be a change of all series."""


@dataclass(frozen=True)
class Change:
    """Change of one series."""

    series: int
    first: int
    """First run after the change."""
    found: int
    """Run that made the change significant."""
    p: float
    ratio: Interval
    """Values after by values before, with a 95 % interval; of all values between the neighbouring changes."""
    returned: bool
    """True if the series had the level after the change before."""
    before: float
    """Level before the change, as a logarithm."""
    unstable_start: bool
    """True if fewer than :data:`BEFORE` values are before the change: it has no level to be compared with."""
    now: float = math.nan
    """Level of the series, or its successor, in the end."""
    ended: bool = False
    """True if neither has a value in the last :data:`RECENT` runs."""
    of_two_states: bool = False
    """True if the series went back and forth in the end."""

    @property
    def is_small(self) -> bool:
        """True for a slowdown that more runs made smaller than MIN_EFFECT, with 95 % confidence."""
        return self.ratio.value > 1 and self.ratio.high < 1 + MIN_EFFECT

    @property
    def unrepaired(self) -> bool:
        """True for a change for the worse whose series did not return to the level before."""
        size = math.log(self.ratio.value)
        counts = size > 0 and not (self.is_small or self.unstable_start or self.of_two_states)
        return counts and self.now - self.before > min(SAME_LEVEL, size / 2)

    @property
    def open(self) -> bool:
        """True for an unrepaired change of a series that goes on."""
        return self.unrepaired and not self.ended

    @property
    def total(self) -> float:
        """Ratio of times that an acceptance must cover: of the change, or of the level now by that before."""
        return max(self.ratio.value, math.exp(self.now - self.before))


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
    two_states: int = -1
    """Run that showed two states; -1 if none did."""


class _Search:
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
        begin = max(0, now + 1 - WINDOW)
        values = np.where(np.arange(begin, now + 1) >= last, self.values[rows, begin : now + 1], np.nan)
        count = np.isfinite(values).sum(axis=1)
        runs = np.argsort(~np.isfinite(values), axis=1, kind="stable")[:, : count.max()]  # known values first
        values = np.take_along_axis(values, runs, axis=1)
        clipped = without_outliers(values)
        departures = clipped - quantiles(clipped)[:, None]
        variance, weight = usual_variance(departures)
        squares = np.array([state.squares for state in states]) + variance * weight
        freedom = np.array([state.freedom for state in states]) + weight

        before = np.broadcast_to(np.arange(values.shape[1]), values.shape)
        after = count[:, None] - before
        allowed = (before >= np.where(last > 0, BEFORE_AGAIN, BEFORE_FIRST)) & (after >= AFTER)
        t = _student(np.nan_to_num(departures), before, np.maximum(after, 1), squares, freedom)
        student = np.where(allowed, t, 0)
        tested = allowed.any(axis=1)
        excess = self._excess(student[tested], allowed[tested])
        points = []
        for row in np.flatnonzero(student.max(axis=1) > PROMISING):
            split = int(student[row].argmax())
            left, right = clipped[row, :split], clipped[row, split : count[row]]
            if not is_large(left, right, values[row, : count[row]]):
                continue
            statistic = float(student[row, split])
            if len(right) >= LASTING:
                old = left[-LEVEL:]
                large = LARGE * 1.4826 * float(np.median(np.abs(old - np.median(old))))
                certain = len(old) == LEVEL and abs(np.median(right) - np.median(left)) >= large
                if not certain and right.std(ddof=1) > NOISIER * left.std(ddof=1):
                    continue
                own = abs(right.mean() - left.mean()) / max(right.std(ddof=1), MIN_DEVIATION)
                statistic = min(statistic / math.sqrt(1.0 if certain else excess), own * math.sqrt(len(right)))
            p = 2 * float(stdtr(freedom[row] + count[row] - 2, -statistic))
            points.append((p, int(rows[row]), begin + int(runs[row, split])))
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
            now if state.two_states < 0 and returned and after > before else state.two_states,
        )
        if returned and state.two_states >= 0:
            return None
        early = not state.cuts and len(old) < BEFORE
        return Change(series, first, now, p, Interval(after - before, 0, 0), returned, before, early)

    def since(self, series: int) -> Vector:
        """Return the values of a series since its last change, as logarithms."""
        return _finite(self.values[series, max(self.series[series].cuts, default=0) :])


def change_points(logs: Matrix, predecessors: Mapping[int, int] | None = None) -> list[Change]:
    """Return the changes in ``logs``: see :func:`findings`."""
    return findings(logs, predecessors or {})[0]


def findings(logs: Matrix, predecessors: Mapping[int, int]) -> tuple[list[Change], dict[int, Vector]]:
    """Return the changes in ``logs`` and, by series of the newest run, the values since its last change.

    ``logs``: (series, runs), logarithms of times in the order of the runs, NaN if missing. ``predecessors``: see
    :func:`joined`. Changes are in the order in which they were found.
    """
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
        level = float(np.median(search.since(last)))
        ended = not np.isfinite(logs[last, -RECENT:]).any()
        state = search.series[last]
        ratio = _ratio(whole[change.series], change.first, search.series[change.series].cuts)
        two = change.found <= state.two_states
        reported.append(replace(change, ratio=ratio, now=level, ended=ended, of_two_states=two))
    newest = map(int, np.flatnonzero(np.isfinite(logs[:, -1])))
    return reported, {row: search.since(row) for row in newest}


def departing(values: Vector) -> int:
    """Return how many of the newest of a series' ``values`` are far above all before, at most LASTING."""
    for number in range(LASTING, 0, -1):
        old, new = values[:-number], values[-number:]
        if len(old) >= BEFORE_FIRST:
            level = np.median(old)
            if (new - level).min() > max(math.log1p(FAR), SINGLE_RECORD * float(np.abs(old - level).max())):
                return number
    return 0


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


def is_large(left: Vector, right: Vector, values: Vector) -> bool:
    """Return True for a change that is large against all that a series did before.

    ``left``, ``right``: values before and after it without single outliers; ``values``: both with their outliers.
    """
    level = np.median(left)
    size = float(np.median(right) - level)
    departures = np.sign(size) * (values - level)
    after = departures[len(left) :]
    if abs(size) < math.log1p(MIN_EFFECT):
        return False
    if len(right) < LASTING:
        return bool(after.min() > SINGLE_RECORD * np.abs(departures[: len(left)]).max())
    width = min(len(right), len(left) // 2) or 1
    sums = np.cumsum(np.concatenate([[0.0], left]))
    record = np.abs((sums[width:] - sums[:-width]) / width - level).max()
    return bool(abs(size) > RECORD * record and np.mean(after > abs(size) / 2) >= AGREEING)


def without_outliers(values: Matrix) -> Matrix:
    """Return ``values`` (series, runs), known ones first, clipped about the medians of five neighbours.

    Three runs in a row at another level stay, one or two are clipped.
    """
    wide = np.pad(values, ((0, 0), (2, 2)), constant_values=np.nan)
    a, b, middle, c, d = near = [wide[:, first : first + values.shape[1]] for first in range(5)]
    low = np.maximum(np.minimum(a, b), np.minimum(c, d))
    high = np.minimum(np.maximum(a, b), np.maximum(c, d))
    middle = np.maximum(np.minimum(low, high), np.minimum(np.maximum(low, high), middle))
    ends = np.isnan(middle) & np.isfinite(values)  # fewer than five neighbours
    middle[ends] = quantiles(np.stack([part[ends] for part in near], axis=1))
    usual = CLIPPED * np.maximum(1.4826 * quantiles(np.abs(values - middle)), MIN_DEVIATION)[:, None]
    return np.clip(values, middle - usual, middle + usual)


def _student(values: Matrix, before: Counts, after: Counts, squares: Vector, freedom: Vector) -> Matrix:
    """(series, values): absolute t statistic of a split before each value; missing values are 0.

    ``before``, ``after``: values on either side.
    """
    left = np.cumsum(values, axis=1) - values
    right = values.sum(axis=1)[:, None] - left
    with np.errstate(divide="ignore", invalid="ignore"):
        within = (values**2).sum(axis=1)[:, None] - left**2 / before - right**2 / after
        variance = np.maximum(within, 0) + squares[:, None]
        variance /= np.maximum(before + after - 2 + freedom[:, None], 1)
        scatter = np.sqrt(np.maximum(variance, MIN_DEVIATION**2) * (1 / before + 1 / after))
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
