"""Change points of many series, each run judged with the runs before it alone.

A later run never alters an earlier finding: a nightly check and a check of the whole archive agree. Effects that
all series of a run share are left out first (:mod:`hpcdl.analysis.over_time.noise`). Then, for each series and
run, among all values since its last change:

1. Place: the split with the largest t statistic, of values that are clipped to the usual scatter.
2. Evidence: likelihood ratio of the step at this split, by the variance of both means with the correlation of
   successive runs (both in :mod:`hpcdl.analysis.over_time.noise`), and by the
   excess of the largest t statistics of all series over those of noise (empirical null: Efron, J. Am. Stat.
   Assoc. 99, 2004). Twice the logarithm is compared with the square of Student's t.
3. False discovery control over the series of a run (Benjamini & Hochberg, J. R. Stat. Soc. B 57, 1995).

A faster series is no alarm, so that an improvement to a new level needs :data:`STRICTER` evidence. A series that
returns to a level that it had goes on with the values of that level. One that rises twice to the same level has
two states: changes between levels that it had are reported no more.

:func:`calibrate` counts false alarms and found steps on an archive's own noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.over_time.noise import (
    CLIPPED,
    MIN_DEVIATION,
    autocorrelation,
    quantiles,
    step,
    usual,
    variance_of_mean,
    without_job_effects,
)
from hpcdl.analysis.statistics.differences import SERIES, usual_variance
from hpcdl.analysis.statistics.estimates import Interval, Vector, student_quantile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Matrix = npt.NDArray[np.float64]

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
FALSE_DISCOVERIES: Final = 0.025
"""Benjamini and Hochberg's share (chosen by simulation: tests/analysis/history_figures.py)."""
STRICTER: Final = 10.0
"""Factor of the p value of an improvement to a new level."""
PROMISING: Final = 2.5
"""Least t statistic of a split that is examined further."""


@dataclass(frozen=True)
class Change:
    """Change of one series."""

    series: int
    first: int
    """First run after the change."""
    found: int
    """Run that made the change significant."""
    p: float
    """Two-sided p value, times :data:`STRICTER` for an improvement to a new level."""
    ratio: Interval
    """Values after by values before, with a 95 % interval; of all values between the neighbouring changes."""
    returned: bool
    """True if the series had the level after the change before."""
    silent: bool
    """True for a change between known levels of a series with two states, which is not reported."""
    before: float
    """Level before the change, as a logarithm."""
    now: float = math.nan
    """Level of the series, or its successor, in the end; NaN without a value in the last :data:`RECENT` runs."""

    @property
    def open(self) -> bool:
        """True for a change for the worse whose series has not returned to the level before."""
        size = math.log(self.ratio.value)
        return size > 0 and self.now - self.before > min(SAME_LEVEL, size / 2)


class _Search:
    """State of the search; arrays are by series."""

    def __init__(self, logs: Matrix) -> None:
        self.values = without_job_effects(logs)
        """(series, runs)."""
        self.level_of = np.zeros(logs.shape, np.int64)
        """(series, runs): number of the level of each run so far."""
        self.level = np.zeros(len(logs), np.int64)
        """Number of the level now."""
        self.levels: list[tuple[float, ...]] = [(math.nan,)] * len(logs)
        """Level by number, as a logarithm; NaN for the first one while it lasts."""
        self.cuts: list[tuple[int, ...]] = [()] * len(logs)
        """First runs after all changes, also those of predecessors."""
        self.squares = np.zeros(len(logs))
        """Sum of squares about the mean, of the segment before."""
        self.freedom = np.zeros(len(logs))
        """Degrees of freedom of ``squares``."""
        self.two_states = np.zeros(len(logs), np.bool_)
        self.excess: list[float] = []
        """Square of the largest t statistics by that of noise, of each run so far."""

    def succeed(self, series: int, predecessor: int) -> None:
        """Let a series go on where its predecessor is now."""
        self.levels[series], self.cuts[series] = self.levels[predecessor], self.cuts[predecessor]
        for state in (self.level_of, self.level, self.squares, self.freedom, self.two_states):
            state[series] = state[predecessor]

    def splits(self, rows: npt.NDArray[np.int64], now: int, least: float, share: float) -> list[Change]:
        """Return the changes that the run ``now`` makes significant, of the series ``rows``, which it has."""
        from scipy.special import stdtr  # late: ranks do not need it

        runs = np.arange(now + 1)
        self.level_of[rows, now] = self.level[rows]
        alike = self.level_of[rows, : now + 1] == self.level[rows, None]
        values = np.where(alike, self.values[rows, : now + 1], np.nan)
        known = np.isfinite(values)
        departures = values - quantiles(values)[:, None]
        limit = CLIPPED * np.maximum(1.4826 * quantiles(np.abs(departures)), MIN_DEVIATION)[:, None]
        clipped = np.clip(departures, -limit, limit)
        variance, weight = usual_variance(clipped)
        squares, freedom = self.squares[rows] + variance * weight, self.freedom[rows] + weight
        phi = autocorrelation(values[known.sum(axis=1) >= BEFORE])

        before = np.cumsum(known, axis=1) - known
        after = known.sum(axis=1)[:, None] - before
        last = np.array([max(self.cuts[row], default=-BEFORE_AGAIN) for row in rows])[:, None]
        fewest = np.where(last > 0, BEFORE_AGAIN, BEFORE)
        allowed = known & (before >= fewest) & (after >= AFTER)
        allowed &= runs >= last + BEFORE_AGAIN
        scale = variance_of_mean(phi, before) + variance_of_mean(phi, after)
        student = np.where(allowed, _student(np.nan_to_num(clipped), before, after, squares, freedom, scale), 0)
        tested = allowed.any(axis=1)
        excess = self._excess(student[tested], allowed[tested])
        points = []
        for row in np.flatnonzero(student.max(axis=1) > PROMISING):
            split = int(student[row].argmax())
            left, right = (part[np.isfinite(part)] for part in np.split(values[row], [split]))
            size, evidence, degrees = step(left, right, squares[row], freedom[row], fewest=AFTER)
            series = int(rows[row])
            if abs(size) < least:
                continue
            t = math.sqrt(2 * evidence / (len(right) * scale[row, split] * excess))
            strict = size < 0 and self._known(series, right) is None
            p = 2 * float(stdtr(degrees, -t)) * (STRICTER if strict else 1)
            points.append((p, series, split))
        points.sort()
        passed = [number for number, split in enumerate(points, 1) if split[0] <= share * number / tested.sum()]
        return [self._restart(*split, now) for split in points[: max(passed, default=0)]]

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

    def _known(self, series: int, values: Vector) -> int | None:
        """Return the number of the earlier level of ``values``; None for a new level."""
        distances = np.abs(np.array(self.levels[series]) - np.median(values))
        distances[self.level[series]] = np.nan
        near = np.flatnonzero(distances <= SAME_LEVEL)
        return int(near[0]) if len(near) else None

    def _restart(self, p: float, series: int, first: int, number: int) -> Change:
        """Go on with the level after a split, which is a new one or one that the series had."""
        known, values = self.levels[series], self.values[series]
        own = np.flatnonzero(self.level_of[series, : number + 1] == self.level[series])
        old, new = _finite(values[own[own < first]]), _finite(values[own[own >= first]])
        before, after = float(np.median(old)), float(np.median(new))
        back = self._known(series, new)
        returned, silent = back is not None, back is not None and bool(self.two_states[series])
        levels = [*known, *([] if returned else [after])]
        levels[self.level[series]] = before
        self.levels[series], self.level[series] = tuple(levels), len(known) if back is None else back
        self.level_of[series, own[own >= first]] = self.level[series]
        self.cuts[series] = (*self.cuts[series], first)
        self.two_states[series] |= returned and after > before
        departures = usual(old) - usual(old).mean()
        self.squares[series], self.freedom[series] = float((departures**2).sum()), len(departures) - 1
        return Change(series, first, number, p, Interval(after - before, 0, 0), returned, silent, before)

    def level_now(self, series: int) -> float:
        """Return the level of a series, as a logarithm."""
        return float(np.median(_finite(self.values[series, self.level_of[series] == self.level[series]])))


def change_points(
    logs: Matrix, predecessors: Mapping[int, int] | None = None, *, min_effect: float = MIN_EFFECT
) -> list[Change]:
    """Return the changes in ``logs`` (series, runs): logarithms of times in the order of the runs, NaN if missing.

    ``predecessors``: see :func:`joined`. Changes are in the order in which they were found.
    """
    predecessors = predecessors or {}
    whole = joined(logs, predecessors)
    search = _Search(whole)
    changes: list[Change] = []
    for now in range(logs.shape[1]):
        rows = np.flatnonzero(np.isfinite(logs[:, now]))
        for row in rows:
            if row in predecessors and not np.isfinite(logs[row, :now]).any():
                search.succeed(int(row), predecessors[int(row)])
        if len(rows) and now >= AFTER:
            changes += search.splits(rows, now, math.log1p(min_effect), FALSE_DISCOVERIES)
    reported = []
    for change in (change for change in changes if not change.silent):
        last = _successor(logs, change.series, predecessors)
        level = search.level_now(last) if np.isfinite(logs[last, -RECENT:]).any() else math.nan
        ratio = _ratio(whole[change.series], change.first, search.cuts[change.series])
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
    values: Matrix,
    before: npt.NDArray[np.int64],
    after: npt.NDArray[np.int64],
    squares: Vector,
    freedom: Vector,
    scale: Matrix,
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


BLOCK: Final = 5
"""Runs that stay together, so that noise which lasts for some runs does so when shuffled."""
STEP: Final = 0.05
"""Step that is added to find out how many of such are found."""
WITHIN: Final = 12
"""Runs within which a step is found, or counts as missed."""
STEPPED_SERIES: Final = 10
"""Series with an added step per round, each at another run, at most."""


@dataclass(frozen=True)
class Calibration:
    """Results over all rounds."""

    rounds: int
    runs: int
    """Runs of one round."""
    regressed: float
    """Events per 100 runs without a change in which series became slower; false alarms."""
    improved: float
    """Events per 100 runs without a change in which series became faster."""
    found: float | None
    """Share of added steps that were found; None for an archive that is too short."""
    delay: float | None
    """Median over the added steps of the runs until one was found, itself included; infinite if most were not."""


def calibrate(
    logs: npt.NDArray[np.float64], changes: Sequence[Change], *, rounds: int = 10, seed: int = 0
) -> Calibration:
    """Shuffle blocks of the runs of ``logs`` (series, runs), without their ``changes``, and search them.

    All series have the same shuffle, so that common effects of a run stay together.
    """
    generator = np.random.default_rng(seed)
    residuals = _residuals(logs, changes)
    runs = logs.shape[1]
    false: list[set[tuple[int, bool]]] = []
    delays: list[float] = []
    for _ in range(rounds):
        blocks = np.array_split(np.arange(runs), max(1, runs // BLOCK))
        order = np.concatenate([blocks[block] for block in generator.permutation(len(blocks))])
        shuffled = residuals[:, order]
        false.append({(point.found, point.ratio.value > 1) for point in change_points(shuffled)})
        delays += _delays(shuffled, generator)
    slower = sum(sum(slower for _, slower in change) for change in false)
    faster = sum(map(len, false)) - slower
    scale = 100 / (rounds * runs)
    return Calibration(
        rounds,
        runs,
        slower * scale,
        faster * scale,
        float(np.mean(np.isfinite(delays))) if delays else None,
        float(np.median(delays)) if delays else None,
    )


def _residuals(logs: npt.NDArray[np.float64], changes: Sequence[Change]) -> npt.NDArray[np.float64]:
    """Return ``logs`` less the median of each series between two changes."""
    shuffled = logs.copy()
    for row in range(len(logs)):
        cuts = sorted(change.first for change in changes if change.series == row)
        for begin, end in zip([0, *cuts], [*cuts, logs.shape[1]], strict=True):
            level = shuffled[row, begin:end]
            if np.isfinite(level).any():
                level -= np.nanmedian(level)
    return shuffled


def _delays(logs: npt.NDArray[np.float64], generator: np.random.Generator) -> list[float]:
    """Return the runs until added steps were found; infinity for a step that was not."""
    stepped = logs.copy()
    steps = {}
    for row in generator.permutation(len(logs))[:STEPPED_SERIES]:
        runs = np.flatnonzero(np.isfinite(logs[row]))
        if len(runs) >= 2 * BEFORE + WITHIN:
            place = int(generator.integers(2 * BEFORE, len(runs) - WITHIN + 1))
            stepped[row, runs[place] :] += math.log1p(STEP)
            steps[int(row)] = runs[place : place + WITHIN]
    fromkeys: dict[int, float] = dict.fromkeys(steps, math.inf)
    for change in change_points(stepped) if steps else ():
        places = np.flatnonzero(steps.get(change.series, np.empty(0)) == change.found)
        if len(places) and change.ratio.value > 1:
            fromkeys[change.series] = min(fromkeys[change.series], float(places[0]) + 1)
    return list(fromkeys.values())
