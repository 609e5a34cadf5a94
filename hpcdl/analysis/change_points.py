"""Change points of many series, each run judged with the runs before it alone.

A later run never alters an earlier finding: a nightly check and a check of the whole archive agree. Effects that
all series of a run share are left out first (:mod:`hpcdl.analysis.job_effects`). Then, for each series and run,
within the last :data:`WINDOW` values:

1. Spike filter (:mod:`hpcdl.analysis.spikes`).
2. Place: the split with the largest energy distance between its sides (E-divisive: Matteson & James, J. Am. Stat.
   Assoc. 109, 2014; windowed as in Fleming et al., Hunter, ICPE 2023).
3. Tests (:mod:`hpcdl.analysis.likelihood_ratio`) and a least magnitude.
4. False discovery control over the series of a run (Benjamini & Hochberg, J. R. Stat. Soc. B 57, 1995).

A faster series is no alarm, so that an improvement needs :data:`STRICTER` evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.job_effects import without_job_effects
from hpcdl.analysis.likelihood_ratio import Prior, step_test
from hpcdl.analysis.spikes import Spikes
from hpcdl.analysis.statistics import Interval, Vector, student_quantile
from hpcdl.analysis.usual_variance import usual_variance

Matrix = npt.NDArray[np.float64]

WINDOW: Final = 100
"""Values that are compared with each other."""
BEFORE: Final = 10
"""Values before the first change of a series, at least."""
BEFORE_AGAIN: Final = 3
"""Values between two changes, at least; their variance is pooled with that of the segment before."""
AFTER: Final = 3
"""Values after a change, at least."""
MIN_EFFECT: Final = 0.03
"""Smallest change that is reported, as a share."""
FALSE_DISCOVERIES: Final = 0.004
"""Expected share of false findings among the findings of a run."""
STRICTER: Final = 10.0
"""Factor of the p value of an improvement."""
SUSPECT: Final = 3.0
"""Least Student's t of any split of a series that is examined further."""


@dataclass(frozen=True)
class Change:
    """Change of one series."""

    series: int
    first: int
    """First run after the change."""
    found: int
    """Run that made the change significant."""
    p: float
    """Two-sided p value, times :data:`STRICTER` for an improvement."""
    ratio: Interval
    """Values after by values before, with a 95 % interval; of all values between the neighbouring changes."""


@dataclass(frozen=True)
class _Split:
    """Split of one series, before its size is known."""

    series: int
    place: int
    """Index of the first value after the change, among the values of the series."""
    p: float


class _History:
    """Values of all series, without the missing ones, and the state of the search."""

    def __init__(self, logs: Matrix) -> None:
        self.logs = logs
        there = np.isfinite(logs)
        cleaned = without_job_effects(logs)
        series = len(logs)
        self.runs = [np.flatnonzero(row) for row in there]
        """Run of each value, by series."""
        self.count = np.cumsum(there, axis=1)
        """(series, runs): values up to each run."""
        self.values = np.full((series, WINDOW + int(there.sum(axis=1).max(initial=0))), np.nan)
        """(series, WINDOW + values): values after as many empty places as the window is long."""
        for row, mask in enumerate(there):
            self.values[row, WINDOW : WINDOW + mask.sum()] = cleaned[row, mask]
        self.spikes = Spikes(self.values, WINDOW)
        self.begin = np.zeros(series, np.int64)
        """First value of the current segment."""
        self.squares = np.zeros(series)
        """Sum of squares about the mean, of the segment before."""
        self.freedom = np.zeros(series)
        """Degrees of freedom of ``squares``."""

    def usable(self, series: int, begin: int, end: int) -> Vector:
        """Return the values ``begin`` to ``end`` of a series that are no spikes."""
        here = slice(WINDOW + begin, WINDOW + end)
        return np.asarray(self.values[series, here][~self.spikes.mask[series, here]], np.float64)

    def measured(self, series: int, begin: int, end: int) -> Vector:
        """Return the values ``begin`` to ``end`` as measured, without spikes if others are left."""
        values = self.logs[series, self.runs[series][begin:end]]
        usual = values[~self.spikes.mask[series, WINDOW + begin : WINDOW + end]]
        return np.asarray(usual if len(usual) >= AFTER else values, np.float64)

    def restart(self, split: _Split) -> None:
        """Begin a new segment at a split."""
        row, begin = split.series, int(self.begin[split.series])
        before: Vector = self.usable(row, max(begin, split.place - WINDOW), split.place)
        self.begin[row] = split.place
        self.squares[row] = float(((before - before.mean()) ** 2).sum())
        self.freedom[row] = len(before) - 1


def change_points(
    logs: Matrix, *, min_effect: float = MIN_EFFECT, false_discoveries: float = FALSE_DISCOVERIES
) -> list[Change]:
    """Return the changes in ``logs`` (series, runs): logarithms of times in the order of the runs, NaN if missing.

    Changes are in the order in which they were found.
    """
    history = _History(logs)
    found: list[tuple[int, _Split]] = []
    for now in range(BEFORE + AFTER - 1, logs.shape[1]):
        rows = np.flatnonzero(np.isfinite(logs[:, now]))
        ends = history.count[rows, now]
        history.spikes.update(rows, ends, history.begin[rows])
        new = _splits(history, rows, ends, math.log1p(min_effect), false_discoveries)
        found += [(now, one) for one in new]
        for one in new:
            history.restart(one)
    return [_change(history, one, now, [split for _, split in found]) for now, one in found]


def _change(history: _History, split: _Split, now: int, splits: list[_Split]) -> Change:
    """Return the change at a split, with its size from all values between the neighbouring splits."""
    runs = history.runs[split.series]
    places = sorted(one.place for one in splits if one.series == split.series)
    here = places.index(split.place)
    begin, end = [0, *places][here], [*places, len(runs)][here + 1]
    before = history.measured(split.series, begin, split.place)
    after = history.measured(split.series, split.place, end)
    return Change(split.series, int(runs[split.place]), now, split.p, _ratio(before, after))


def _ratio(before: Vector, after: Vector) -> Interval:
    freedom = len(before) + len(after) - 2
    squares = sum(float(((one - one.mean()) ** 2).sum()) for one in (before, after))
    error = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(after)))
    difference, reach = float(after.mean() - before.mean()), student_quantile(freedom, 0.95) * error
    return Interval(*(math.exp(one) for one in (difference, difference - reach, difference + reach)))


def _splits(
    history: _History, rows: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], least: float, share: float
) -> list[_Split]:
    """Return the significant splits of the series ``rows``, which have ``ends`` values now."""
    columns = ends[:, None] + np.arange(WINDOW)  # the last WINDOW values
    values = history.values[rows[:, None], columns]
    usable = np.isfinite(values) & ~history.spikes.mask[rows[:, None], columns]
    usable &= columns - WINDOW >= history.begin[rows, None]
    fewest = np.where(history.begin[rows] > 0, BEFORE_AGAIN, BEFORE)
    tested = int((usable.sum(axis=1) >= fewest + AFTER).sum())
    student = _student(values, usable, fewest, history.squares[rows], history.freedom[rows])
    usual = usual_variance(np.where(usable, values, np.nan))
    found = []
    for one in np.flatnonzero(np.abs(student).max(axis=1) > SUSPECT):
        mine = values[one, usable[one]]
        split = _energy_split(mine, int(fewest[one]))
        prior = Prior(
            float(history.squares[rows[one]]) + usual.variance * usual.freedom,
            float(history.freedom[rows[one]]) + usual.freedom,
        )
        step, p = step_test(mine[:split], mine[split:], prior, fewest=AFTER)
        if abs(step) >= least:
            column = np.flatnonzero(usable[one])[split]
            place = int(columns[one, column]) - WINDOW
            found.append(_Split(int(rows[one]), place, p if step > 0 else STRICTER * p))
    found.sort(key=lambda one: one.p)
    passed = [number for number, one in enumerate(found, 1) if one.p <= share * number / max(tested, 1)]
    return found[: max(passed, default=0)]


def _student(
    values: Matrix, usable: npt.NDArray[np.bool_], fewest: npt.NDArray[np.int64], squares: Vector, freedom: Vector
) -> Matrix:
    """(series, values): Student's t between the values from each one on and those before; 0 where too few."""
    total = usable.sum(axis=1)[:, None]
    before = np.cumsum(usable, axis=1, dtype=np.int64) - usable
    after = total - before
    kept = np.where(usable, values, 0)
    centred = np.where(usable, kept - (kept.sum(axis=1)[:, None] / np.maximum(total, 1)), 0)
    sums = np.cumsum(centred, axis=1) - centred
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = -sums * (1 / after + 1 / before)
        between = difference**2 * before * after / total
        within = np.maximum((centred**2).sum(axis=1)[:, None] - between, 0) + squares[:, None]
        variance = within / np.maximum(total - 2 + freedom[:, None], 1)
        found = difference / np.sqrt(variance * (1 / before + 1 / after))
    allowed = usable & (before >= fewest[:, None]) & (after >= AFTER)
    return np.where(allowed & ~np.isnan(found), found, 0)


def _energy_split(values: Vector, fewest: int) -> int:
    """Return the split with the largest energy distance, weighted by n m / (n + m)."""
    distance = np.abs(values[:, None] - values[None, :])
    corner = np.zeros((len(values) + 1, len(values) + 1))
    corner[1:, 1:] = distance.cumsum(axis=0).cumsum(axis=1)
    splits = np.arange(fewest, len(values) - AFTER + 1)
    inside = corner[splits, splits]
    across = corner[splits, -1] - inside
    beyond = corner[-1, -1] - inside - 2 * across
    n, m = splits, len(values) - splits
    energy = (2 * across / (n * m) - inside / n**2 - beyond / m**2) * n * m / (n + m)
    return int(splits[np.argmax(energy)])
