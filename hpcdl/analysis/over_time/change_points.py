"""Change points of many series, each run judged with the runs before it alone.

A later run never alters an earlier finding: a nightly check and a check of the whole archive agree. Effects that
all series of a run share are left out first. Then, for each series and run, among the values since its last
change, of the last :data:`WINDOW` runs at most:

1. Place: the split with the largest t statistic, of values whose single outliers are replaced by the median of
   their neighbours (Hampel filter). Its variance takes into account the usual variance of all series.
2. Evidence: a change is large against all that the series did before, as a multiple of the largest departure of as
   many runs, and most runs after it agree. Of three or four runs each departs more than any run before. More are
   significant by the last runs alone, too, whose variance may have grown.
3. Where other series wander, t is divided by the excess of their largest statistics over those of noise (empirical
   null: Efron, J. Am. Stat. Assoc. 99, 2004). A large multiple of the robust deviation, and of the steps of the
   other series, is certain without it.

A change with fewer than ten runs before it is an unstable start. Changes between two levels that a series had in
its first :data:`REMEMBERED` runs are muted until it stays at one of them for twice as long as ever before.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.statistics.differences import Flags, Matrix, Vector, beyond
from hpcdl.analysis.statistics.estimates import (
    LEVEL,
    MIN_DEVIATION,
    SERIES,
    Counts,
    Interval,
    finite,
    quantiles,
    splits,
    spread,
    student_quantile,
    usual,
    usual_variance,
    without_common_effects,
    without_outliers,
)

BEFORE: Final = 10
"""Values that make a level; a change with fewer before it is an unstable start."""
BEFORE_FIRST: Final = 5
"""Values before an unstable start, at least; :data:`LEVEL` where values before the window are not examined."""
AFTER: Final = 3
"""Values after a change, at least."""
LASTING: Final = 5
"""Values after a change whose mean counts; with fewer, each value counts."""
RECORD: Final = 1.5
"""Least size of a change by the largest departure before it of as many runs, and by the values' resolution."""
SINGLE_RECORD: Final = 2.0
"""Least departure of single runs by the largest of any run before."""
LARGE: Final = 3.0
"""Robust deviations of :data:`LEVEL` runs beyond which half of all series must wander to matter; twice: none."""
RECENT: Final = 10
"""Runs without a value after which a series has ended."""
MIN_EFFECT: Final = 0.03
"""Smallest change that is reported, as a share."""
WINDOW: Final = 100
"""Runs that are examined for a change, at most."""
REMEMBERED: Final = 30
"""Runs after which a level that a series left is a new one; first runs, whose levels are the usual ones."""
SAME_LEVEL: Final = 0.03
"""Largest difference of two levels, as a logarithm, that are one."""
CHANCE: Final = 2e-4
"""Chance of a false change in a run, by t (chosen by simulation: tests/analysis/history_figures.py)."""


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
    """Values after / before, with a 95 % interval; of all values between the neighbouring changes."""
    returned: bool
    """True if the series had the level after the change before."""
    before: float
    """Level before the change, as a logarithm."""
    unstable_start: bool
    """True if fewer than :data:`BEFORE` values are before the change: it has no level to be compared with."""
    now: float = math.nan
    """Level of the series, or its successor, in the end."""
    lowest: float = math.nan
    """Lowest of its levels since the change: a regression that was repaired and returns is another change."""
    ended: bool = False
    """True if neither has a value in the last :data:`RECENT` runs."""
    muted: bool = False
    """True if the series had both levels in its first :data:`REMEMBERED` runs, rose before and leaves as usual."""

    @property
    def is_small(self) -> bool:
        """True for a slowdown that more runs made smaller than MIN_EFFECT, with 95 % confidence."""
        return self.ratio.value > 1 and self.ratio.high < 1 + MIN_EFFECT

    @property
    def unrepaired(self) -> bool:
        """True for a change for the worse whose series did not return to the level before."""
        size = math.log(self.ratio.value)
        counts = size > 0 and not (self.is_small or self.unstable_start)
        return counts and self.lowest - self.before > min(SAME_LEVEL, size / 2)

    @property
    def open(self) -> bool:
        """True for an unrepaired change of a series that goes on."""
        return self.unrepaired and not self.ended

    @property
    def total(self) -> float:
        """Ratio of times that an acceptance must cover: of the change, or the level now / before it."""
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
    bimodal: bool = False
    """True if the last change was between two levels of the first runs, and no first rise or its repair."""

    def had(self, level: float, run: int) -> bool:
        """Return True if the series left the level within the last REMEMBERED runs before ``run``."""
        left = zip(self.levels, self.cuts, strict=True)
        return any(abs(other - level) <= SAME_LEVEL and run - cut <= REMEMBERED for other, cut in left)


class Search:
    """Search of all runs for changes."""

    def __init__(self, logs: Matrix, predecessors: Mapping[int, int] | None = None) -> None:
        """Search ``logs`` (series, runs): logarithms of times in the order of the runs, NaN if missing.

        ``predecessors``: see :attr:`hpcdl.analysis.over_time.series.History.predecessors`. A series goes on with
        the values of its predecessor before its own first one.
        """
        self.measured = np.isfinite(logs)
        self.predecessors = predecessors or {}
        self.first = {row: int(self.measured[row].argmax()) for row in self.predecessors}
        self.logs = logs.copy()
        for row, begin in sorted(self.first.items(), key=lambda item: item[1]):
            self.logs[row, :begin] = self.logs[self.predecessors[row], :begin]
        self.values = without_common_effects(self.logs)
        self.ticks = resolution(self.logs)
        self.series = [_Series() for _ in logs]
        self.excess: list[tuple[float, float, float]] = []
        """By run, squares of quantile and median of the largest t statistics / of noise; quantile of the steps."""
        changes: list[Change] = []
        for run in range(logs.shape[1]):
            for row in (row for row, begin in self.first.items() if begin == run and self.measured[row, run]):
                self.series[row] = replace(self.series[self.predecessors[row]])
            rows = np.flatnonzero(self.measured[:, run])
            if len(rows) and run >= AFTER:
                changes += self._search(rows, run)
        finished = sorted(map(self._finished, changes), key=attrgetter("found"))
        self.changes = [change for change in finished if not change.muted]
        """In the order in which they were found."""
        self.muted = [
            change for change in finished if change.muted and change.first in self.series[change.series].cuts[-1:]
        ]
        """Those that are muted, each the last one of its series."""

    @property
    def drifts(self) -> bool:
        """True if half of the series drift: neighbouring runs are so alike that chance makes steps.

        Noise has an excess of 0.8 to 1.5, and a correlation of 0.6 has 2.4.
        """
        return bool(self.excess) and float(np.median([half for _, half, _ in self.excess])) > 2

    def _search(self, rows: Counts, now: int) -> list[Change]:
        """Return the changes that the run ``now`` makes significant, of the series ``rows``, which it has."""
        states = [self.series[row] for row in rows]
        last = np.array([max(state.cuts, default=0) for state in states])[:, None]
        begin = max(0, now + 1 - WINDOW)
        least = np.where(np.isfinite(self.values[rows, :begin]).any(axis=1), LEVEL, BEFORE_FIRST)[:, None]
        values = np.where(np.arange(begin, now + 1) >= last, self.values[rows, begin : now + 1], np.nan)
        count = np.isfinite(values).sum(axis=1)
        runs = np.argsort(~np.isfinite(values), axis=1, kind="stable")[:, : count.max()]  # known values first
        values = np.take_along_axis(values, runs, axis=1)
        cleaned = without_outliers(values)
        departures = cleaned - quantiles(cleaned)[:, None]
        variance, weight = usual_variance(departures)
        squares = np.array([state.squares for state in states]) + variance * weight
        freedom = np.array([state.freedom for state in states]) + weight

        before = np.broadcast_to(np.arange(values.shape[1]), values.shape)
        after = count[:, None] - before
        # three values between two changes: their variance is pooled with that of the segment before
        allowed = (before >= np.where(last > begin, 3, least)) & (after >= AFTER)
        t = splits(np.nan_to_num(departures), before, np.maximum(after, 1), squares, freedom)
        student = np.where(allowed, t, 0)
        tested = allowed.any(axis=1)
        excess = self._excess(departures[tested], student[tested], allowed[tested])
        points = []
        for row in np.flatnonzero(student.max(axis=1) > 2.5):
            split, end = int(student[row].argmax()), int(count[row])
            left, right = cleaned[row, :split], cleaned[row, split:end]
            logs = self.logs[rows[row], begin + runs[row, :end]]
            first = begin + int(runs[row, split])
            large = is_large(left, right, values[row, :end], logs, self.ticks[rows[row], first - 1])
            if large and (len(right) < LASTING or lasts(left, right)):
                statistic = float(student[row, split]) / math.sqrt(_null(left, right, *excess))
                p = 2 * float(beyond(statistic, freedom[row] + end - 2))
                if p <= CHANCE / tested.sum():
                    points.append((p, int(rows[row]), first))
        return [self._restart(*point, now) for point in sorted(points)]

    def _excess(self, departures: Matrix, student: Matrix, allowed: Flags) -> tuple[float, float, float]:
        """Return by how much the largest t statistics exceed those of noise, of most and of half of the series.

        The third value is the step that most series do not exceed. 1, 1 and 0 for few series. The median over runs
        counts, so that a change of many series does not hide itself. Of the largest of k statistics of noise the
        square has the 90 % quantile 2.7 + 1.1 log(k), and half of it as its median (simulated, 0.7 to 1.2).
        """
        if len(student) >= SERIES:
            most, half = (float(np.quantile(student.max(axis=1), share)) ** 2 for share in (0.9, 0.5))
            noise = 2.7 + 1.1 * math.log(np.median(allowed.sum(axis=1)))
            after = np.arange(student.shape[1]) >= student.argmax(axis=1)[:, None]
            sides = (quantiles(np.where(side, departures, np.nan)) for side in (after, ~after))
            step = float(np.quantile(np.abs(np.subtract(*sides)), 0.9))
            self.excess.append((most / noise, 2 * half / noise, step))
        most, half, step = np.median(self.excess, axis=0).tolist() if self.excess else (1.0, 1.0, 0.0)
        return max(1.0, most), max(1.0, half), step

    def _restart(self, p: float, series: int, first: int, now: int) -> Change:
        """Go on with the values after a split; return the change."""
        state = self.series[series]
        begin = max(state.cuts, default=0)
        recent = max(begin, now + 1 - WINDOW)
        old, new = (finite(self.values[series, part]) for part in (slice(recent, first), slice(first, now + 1)))
        before, after = float(np.median(old)), float(np.median(new))
        returned = state.had(after, first)
        departures = usual(old) - usual(old).mean()
        past = finite(self.values[series, :first])
        early = not state.cuts and len(past) < BEFORE
        known = returned and (state.bimodal or after > before) and had_both(past[:REMEMBERED], before, after)
        self.series[series] = _Series(
            (*state.cuts, first),
            (*state.levels, before),
            float((departures**2).sum()),
            len(departures) - 1,
            known,
        )
        return Change(series, first, now, p, Interval(after - before, 0, 0), returned, before, early, muted=known)

    def since(self, series: int, logs: Matrix | None = None) -> Vector:
        """Return the ``logs`` of a series since its last change; by default without the common effects of runs."""
        return finite((self.values if logs is None else logs)[series, max(self.series[series].cuts, default=0) :])

    def _successor(self, series: int) -> int:
        """Return the series that goes on with a series that has no value since the first one of its successor."""
        for row, other in self.predecessors.items():
            if other == series and not self.measured[series, self.first[row] :].any():
                return self._successor(row)
        return series

    def _finished(self, change: Change) -> Change:
        """Return a change with its ratio, of all runs, and the state of its series in the end.

        A muted one is found when the level has lasted twice as long as any before.
        """
        last = self._successor(change.series)
        state, now = self.series[last], float(np.median(self.since(last)))
        number = 1 + state.cuts.index(change.first)
        # A series that alternates between two levels would alarm at each return. It is muted until it stays at one
        # level twice as long as ever before, which alternation alone would not do.
        stays = np.diff([0, *state.cuts, self.logs.shape[1]])
        longest = max(REMEMBERED, 2 * int(stays[:number].max()))
        return replace(
            change,
            found=change.first + longest if change.muted else change.found,
            muted=change.muted and bool(stays[number] <= longest),
            ratio=_ratio(self.logs[change.series], change.first, self.series[change.series].cuts),
            now=now,
            lowest=min([*state.levels[number:], now]),
            ended=not self.measured[last, -RECENT:].any(),
        )


def change_points(logs: Matrix) -> list[Change]:
    """Return the changes in ``logs``: see :class:`Search`."""
    return Search(logs).changes


def had_both(values: Vector, *levels: float) -> bool:
    """Return True if the median of some :data:`LASTING` successive values is each of two levels."""
    if len(values) < LASTING:
        return False
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values, LASTING), axis=1)
    reach = min(SAME_LEVEL, abs(levels[0] - levels[1]) / 4)
    return all(bool((np.abs(medians - level) <= reach).any()) for level in levels)


def far_above(values: Vector) -> int:
    """Return how many of the newest of a series' ``values`` are 10 % or more above all before, at most LASTING."""
    for number in range(LASTING, 0, -1):
        old, new = values[:-number], values[-number:]
        if len(old) >= BEFORE_FIRST:
            level = np.median(old)
            if (new - level).min() > max(math.log1p(0.1), SINGLE_RECORD * float(np.abs(old - level).max())):
                return number
    return 0


def resolution(logs: Matrix) -> Matrix:
    """(series, runs): smallest difference of successive times up to each run, such as the tick of a timer.

    It is the median over all series where the times of a series are equal; 0 where those of half of them are.
    """
    smallest = np.full(logs.shape, math.inf)
    for row, values in enumerate(logs):
        runs = np.flatnonzero(np.isfinite(values))
        steps = np.abs(np.diff(np.exp(values[runs])))
        smallest[row, runs[1:]] = np.where(np.abs(np.diff(values[runs])) > 1e-9, steps, math.inf)
    smallest = np.minimum.accumulate(smallest, axis=1)
    smallest = np.where(np.isinf(smallest), np.median(smallest, axis=0), smallest)
    return np.where(np.isinf(smallest), 0, smallest)


def is_large(left: Vector, right: Vector, values: Vector, logs: Vector, tick: float) -> bool:
    """Return True for a change that is large against all that a series did before.

    ``left``, ``right``: values before and after it without single outliers; ``values``: both with their outliers;
    ``logs``: both with the effects of the runs, which may be those of other series alone; ``tick``: in s.
    """
    level = np.median(left)
    size = float(np.median(right) - level)
    departures = np.sign(size) * (values - level)
    after = departures[len(left) :]
    old, new = logs[: len(left)], logs[len(left) :]
    least = math.log1p(max(MIN_EFFECT, RECORD * tick / math.exp(np.median(old))))
    if min(abs(size), abs(np.median(new) - np.median(old))) < least:
        return False
    if len(right) < LASTING:
        return bool(after.min() > SINGLE_RECORD * np.abs(departures[: len(left)]).max())
    width = min(len(right), len(left) // 2) or 1
    sums = np.cumsum(np.concatenate([[0.0], left]))
    record = np.abs((sums[width:] - sums[:-width]) / width - level).max()
    return bool(abs(size) > RECORD * record and np.mean(after > abs(size) / 2) >= 0.75)


def lasts(left: Vector, right: Vector) -> bool:
    """Return True for a change that is significant by the variance of the last runs alone."""
    near = left[-LASTING:]
    freedom = len(near) + len(right) - 2
    squares = float(((near - np.median(near)) ** 2).sum() + ((right - right.mean()) ** 2).sum())
    error = max(math.sqrt(squares / freedom), MIN_DEVIATION) / math.sqrt(len(right))
    return bool(2 * beyond(abs(right.mean() - left.mean()) / error, freedom) <= CHANCE / 4)


def _null(left: Vector, right: Vector, most: float, half: float, step: float) -> float:
    """Return the excess that matters for a change: of most series, or of half if it is large, or none.

    ``most``, ``half``, ``step``: of :meth:`Search._excess`.
    """
    old = left[-LEVEL:]
    unit = max(LARGE * float(spread(np.abs(old - np.median(old))[None])[0]), step)
    size = abs(float(np.median(right) - np.median(left))) if len(old) == LEVEL else 0.0
    return 1.0 if size >= 2 * unit else half if size >= unit or len(right) < LASTING else most


def _ratio(values: Vector, first: int, cuts: Sequence[int]) -> Interval:
    """Return the values since ``first`` / before it, of all between the neighbouring ones of ``cuts``."""
    begin = max([0, *(cut for cut in cuts if cut < first)])
    end = min([len(values), *(cut for cut in cuts if cut > first)])
    sides = [finite(values[begin:first]), finite(values[first:end])]
    before, after = (usual(side) if len(usual(side)) >= AFTER else side for side in sides)
    freedom = len(before) + len(after) - 2
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (before, after))
    error = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(after)))
    difference, reach = float(after.mean() - before.mean()), student_quantile(freedom, 0.95) * error
    return Interval(*(math.exp(bound) for bound in (difference, difference - reach, difference + reach)))


class Calibration(NamedTuple):
    """False alarms in shuffled runs."""

    rounds: int
    regressed: float
    """Events per 100 runs without a change in which series became slower."""
    improved: float
    """Events per 100 runs without a change in which series became faster."""


def calibrate(logs: Matrix, changes: Sequence[Change], *, rounds: int = 10) -> Calibration:
    """Shuffle blocks of five runs of ``logs`` (series, runs), without their ``changes``, and search them.

    All series have the same shuffle: common effects of a run stay together, and noise that lasts for some runs.
    """
    residuals, generator = logs.copy(), np.random.default_rng(0)
    runs = logs.shape[1]
    for row in range(len(logs)):
        cuts = sorted(change.first for change in changes if change.series == row)
        for begin, end in zip([0, *cuts], [*cuts, runs], strict=True):
            level = residuals[row, begin:end]
            if np.isfinite(level).any():
                level -= np.nanmedian(level)
    blocks = np.array_split(np.arange(runs), max(1, runs // 5))
    false = [0, 0]
    for _ in range(rounds):
        order = np.concatenate([blocks[block] for block in generator.permutation(len(blocks))])
        for _, slower in {(change.found, change.ratio.value > 1) for change in change_points(residuals[:, order])}:
            false[slower] += 1
    improved, regressed = (number * (100 / (rounds * runs)) for number in false)
    return Calibration(rounds, regressed, improved)
