"""Comparison of two sets of runs: measures that regressed, improved, are unchanged, or lack data.

The unit is the launch, or the job where a side has several jobs and one of them several launches: iterations of a
launch, and launches of a job, are not independent. If each side is one job, a stated variation of jobs counts.
A ratio is exp of the difference of mean logarithms, with the 95 % interval of a moderated t
(:mod:`hpcdl.analysis.statistics.differences`); p-values are adjusted over all comparisons (Benjamini & Hochberg).
A regression needs an adjusted p < 0.05 and a change beyond ``min_effect``; "unchanged" needs an interval within
it; everything else is inconclusive. Launches that a gap sets apart are counted: a larger share of slow ones is a
regression by Fisher's exact test.
"""

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

import numpy as np

from hpcdl.analysis.over_time.pairing import FAILED, INCONCLUSIVE, MISSING, NEW, Change, pairs
from hpcdl.analysis.over_time.series import RunSeries
from hpcdl.analysis.statistics.differences import (
    ALPHA,
    MIN_DRIFT,
    Group,
    Matrix,
    adjusted,
    moderated,
    needed,
    smallest_visible,
)
from hpcdl.analysis.statistics.estimates import bounded_exp, proportion_interval

REGRESSED, ACCEPTED, IMPROVED, UNCHANGED = "regressed", "accepted", "improved", "unchanged"
VERDICTS: Final = (FAILED, REGRESSED, MISSING, ACCEPTED, INCONCLUSIVE, IMPROVED, UNCHANGED, NEW)
"""Worst first."""

SIDES: Final = {IMPROVED: (1,), UNCHANGED: (0, 1)}
"""Sides whose share of slow launches would contradict a verdict."""
SHARE: Final = 0.25
"""Probability of a share below which it does: two more slow launches than on the other side."""


@dataclass(frozen=True)
class Accepted:
    """Regressions of some cases that are accepted up to a size and until a date."""

    case: str
    """Name of a case, or a pattern of names (*, ?)."""
    change: float
    """Largest accepted slowdown, as a share."""
    reason: str
    expires: dt.date
    """Last day on which they are accepted."""

    def matches(self, case: str) -> bool:
        """Return True for a case whose regression is accepted."""
        return case == self.case or fnmatchcase(case, self.case)

    def refuses(self, ratio: float, min_effect: float, today: dt.date) -> str:
        """Return why the entry does not cover a ratio of times today; empty if it does."""
        if self.expires < today:
            return f"accepted until {self.expires}, which has passed"
        if ratio > (1 + self.change) * (1 + min_effect):
            return f"accepted only up to {100 * self.change:g} %"
        return ""


def acceptance(
    name: str, ratio: float, accepted: Sequence[Accepted], min_effect: float, today: dt.date
) -> tuple[Accepted | None, str]:
    """Return the entry that covers a case and its ratio of times, else why none of those that match it does."""
    entries = [(entry, entry.refuses(ratio, min_effect, today)) for entry in accepted if entry.matches(name)]
    refused = None, entries[0][1] if entries else ""
    return next((entry for entry in entries if not entry[1]), refused)


def _accepted(change: Change, accepted: Sequence[Accepted], min_effect: float, today: dt.date) -> Change:
    """Change the verdict of an accepted regression; if an entry matches another, the reason says why not."""
    if change.verdict != REGRESSED:
        return change
    entry, refusal = acceptance(change.case, change.ratio, accepted, min_effect, today)
    if entry is None:
        return replace(change, reason=refusal or change.reason)
    return replace(change, verdict=ACCEPTED, reason=f"accepted until {entry.expires}: {entry.reason}")


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison."""

    changes: list[Change]
    """Worst first."""
    unit: str
    """``launch`` or ``job``."""
    jobs: tuple[int, int]
    """Of the baseline and of the candidate."""
    between_jobs: float
    """Stated standard deviation between jobs, as a share; 0 if jobs of the runs show it."""
    min_effect: float
    expired: list[Accepted]
    """Accepted regressions whose date has passed."""
    unused: list[Accepted]
    """Accepted regressions that match no compared case."""
    drift: float = 0.0
    """Correlation of successive launches or jobs that intervals allow for; 0 if both sides alternate."""
    paired: bool = False
    """True if launches or jobs of both sides alternate in time, and are compared in pairs."""
    sides: tuple[Sequence[RunSeries], Sequence[RunSeries]] = ((), ())
    """Runs of the baseline and of the candidate."""

    def count(self, *verdicts: str) -> int:
        """Return the number of measures with one of the verdicts."""
        return sum(change.verdict in verdicts for change in self.changes)

    @property
    def verdict(self) -> str:
        """``regressed``, ``inconclusive``, ``improved`` or ``unchanged``.

        Regressed if any measure regressed, failed or is missing; else inconclusive if the undecided effect of a
        measure may exceed twice ``min_effect``, or if at least half of the measures are: a comparison of too few
        launches must not pass.
        """
        if self.count(FAILED, REGRESSED, MISSING):
            return REGRESSED
        compared = self.count(ACCEPTED, INCONCLUSIVE, IMPROVED, UNCHANGED)
        largest = max((change.largest for change in self.undecided[:1]), default=0.0)
        if 2 * self.count(INCONCLUSIVE) >= compared or largest > 1 + 2 * self.min_effect:
            return INCONCLUSIVE
        return IMPROVED if self.count(IMPROVED) else UNCHANGED

    @property
    def undecided(self) -> list[Change]:
        """Inconclusive measures, those first whose effect may be largest."""
        changes = [change for change in self.changes if change.verdict == INCONCLUSIVE]
        return sorted(changes, key=lambda change: 0.0 if math.isnan(change.largest) else -change.largest)


def compare(
    baseline: Sequence[RunSeries],
    candidate: Sequence[RunSeries],
    min_effect: float,
    accepted: Sequence[Accepted],
    today: dt.date,
    between_jobs: float = 0.0,
) -> Comparison:
    """Compare the candidate's runs with the baseline's; each run is one launch.

    ``between_jobs``: standard deviation between jobs as a share, which counts if each side is one job.

    Raises ValueError if the baseline has no measured case, not even a disturbed one.
    """
    baseline, candidate = _by_time(baseline), _by_time(candidate)
    every = pairs(baseline, candidate)
    if not any(change.values[0] for change in every) and not any(run.disturbed for run in baseline):
        simulated = any(run.simulated for run in baseline)
        why = "all its cases are simulated" if simulated else "it has no measured case without an error"
        raise ValueError(f"{baseline[0].path}: the baseline cannot be compared: {why}")
    jobs = (len({run.job for run in baseline}), len({run.job for run in candidate}))
    by_job = max(jobs) > 1 and jobs != (len(baseline), len(candidate))
    between = between_jobs if jobs == (1, 1) else 0.0
    compared = [change for change in every if not change.verdict]
    units, alternate = _units((baseline, candidate), by_job=by_job)
    changes, drift, paired = changes_of(
        compared, min_effect, math.log1p(between), units, by_job=by_job, alternate=alternate
    )
    changes += [change for change in every if change.verdict]
    changes = [_accepted(change, accepted, min_effect, today) for change in changes]
    changes.sort(key=lambda change: -change.ratio if math.isfinite(change.ratio) else 0.0)
    return Comparison(
        changes=sorted(changes, key=lambda change: VERDICTS.index(change.verdict)),
        unit="job" if by_job else "launch",
        jobs=jobs,
        between_jobs=between,
        min_effect=min_effect,
        expired=[entry for entry in accepted if entry.expires < today],
        unused=[entry for entry in accepted if not any(entry.matches(change.case) for change in changes)],
        drift=drift,
        paired=paired,
        sides=(baseline, candidate),
    )


def _by_time(runs: Sequence[RunSeries]) -> Sequence[RunSeries]:
    """Return the runs in the order of time, or as given if the date of one is unknown."""
    dates = {run.path: run.began for run in runs if run.began}
    return sorted(runs, key=lambda run: dates[run.path]) if len(dates) == len(runs) else runs


def _units(sides: Sequence[Sequence[RunSeries]], *, by_job: bool) -> tuple[list[list[str]], bool]:
    """Return the launches or jobs of each side, and True if in time one of each side follows the other."""
    begins: list[dict[str, dt.datetime | None]] = [{}, {}]
    for of_side, runs in zip(begins, sides, strict=True):
        for run in runs:
            of_side.setdefault(run.job if by_job else run.path, run.began)
    dates = sorted((date, side) for side in (0, 1) for date in begins[side].values() if date)
    couples = zip(dates[::2], dates[1::2], strict=False)
    count = len(begins[0])
    distinct = len({date for date, _ in dates}) == 2 * count == 2 * len(begins[1])
    alternate = distinct and count > 1 and all(first[1] != second[1] for first, second in couples)
    return [list(of_side) for of_side in begins], alternate


def changes_of(
    compared: Sequence[Change],
    min_effect: float,
    between: float,
    units: Sequence[Sequence[str]] = ((), ()),
    *,
    by_job: bool,
    alternate: bool = False,
) -> tuple[list[Change], float, bool]:
    """Return the changes, the correlation of neighbours that intervals allow for, and True if pairs are compared.

    All measures with values on both sides are tested together: their means and their shares of slow launches.
    Shares are tested apart, of the measures whose numbers of slow launches can be significant (Tarone 1990).
    ``units``: launches or jobs of each side in the order of time, else that of the values is meant; ``alternate``:
    one of each side follows the other.
    """
    if not compared:
        return [], 0.0, False
    baseline, candidate = (_table(compared, side, units[side], by_job=by_job) for side in (0, 1))
    paired = alternate and bool((np.isfinite(baseline + candidate).sum(axis=1) > 1).all())
    if not paired:
        baseline, candidate = (side[:, np.isfinite(side).any(axis=0)] for side in (baseline, candidate))
    is_ordered = paired or max(baseline.shape[1], candidate.shape[1]) >= MIN_DRIFT
    result = moderated(baseline, candidate, between, ordered=True, paired=paired)
    difference, limit = result.difference, math.log1p(min_effect)
    p = adjusted(difference.p)
    of_shares = [group.p(1) if group and group.p(1, least=True) < ALPHA else math.nan for group in result.groups]
    shares = adjusted(np.array(of_shares))
    (low, high), unit = difference.bounds(), "job" if by_job else "launch"
    visible = smallest_visible(difference, limit, max(int(np.count_nonzero(~np.isnan(p))), 1))
    counts = np.array([[1, 1] if between else side for side in result.counts], np.float64)
    wanted = needed(difference, counts, limit)
    changes = []
    for number, (untested, group) in enumerate(zip(compared, result.groups, strict=True)):
        before, after = np.exp(result.means[number]).tolist()
        change = replace(untested, verdict=INCONCLUSIVE, baseline=before, candidate=after, ratio=after / before)
        if np.isnan(p[number]):
            changes.append(replace(change, reason=f"one {unit} on each side"))
            continue
        first, last, smallest = (bounded_exp(value[number]) for value in (low, high, visible))
        largest = max(last, _largest(group)) if group else last
        change = replace(change, p=float(p[number]), low=first, high=last, smallest=smallest, largest=largest)
        change = replace(change, needed=float(wanted[number]))
        change = replace(change, reason=_described(group, unit)) if group else change
        verdict = _verdict(p[number], difference.value[number], low[number], high[number], limit)
        size = abs(math.log(group.factor)) if group else 0.0
        if verdict != REGRESSED and shares[number] < ALPHA and size > limit + 2 * between:
            before, after = (float(np.exp(np.nanmean(side[number]))) for side in (baseline, candidate))
            change = replace(change, baseline=before, candidate=after, ratio=after / before, by_share=True)
            change = replace(change, low=math.nan, high=math.nan, p=float(shares[number]))
            verdict = REGRESSED
        elif not is_ordered:
            why = f"too few {'jobs' if by_job else 'launches'} to see if successive ones resemble each other"
            verdict, change = INCONCLUSIVE, replace(change, reason="; ".join(filter(None, [change.reason, why])))
        elif group and verdict in {IMPROVED, UNCHANGED} and min(map(group.p, SIDES[verdict])) < SHARE:
            verdict = INCONCLUSIVE
        changes.append(replace(change, verdict=verdict))
    return changes, result.drift, paired


def _largest(group: Group) -> float:
    """Return the largest ratio of means that the shares of slow launches leave open, by their exact bounds."""
    before, now = (
        proportion_interval(count if group.factor > 1 else size - count, size)
        for count, size in zip(group.counts, group.sizes, strict=True)
    )
    return bounded_exp(abs(math.log(group.factor)) * max(now.high - before.low, 0.0))


def _described(group: Group, unit: str) -> str:
    """Return number and slowness of the launches of a group: 4 of 12 launches take 1.5 times as long, ..."""
    (before, now), (earlier, size) = group.counts, group.sizes
    units = unit if size == 1 else "jobs" if unit == "job" else "launches"
    mode = "" if group.few else "bimodal: "
    share, other = (f"{count or 'none'} of {size}" for count, size in ((now, size), (before, earlier)))
    takes = f"take{'' if now > 1 else 's'} {group.factor:.3g} times as long"
    return f"{mode}{share} {units} {takes}, in the baseline {other}"


def _table(compared: Sequence[Change], side: int, units: Sequence[str], *, by_job: bool) -> Matrix:
    """Return logarithms, (measures, launches or jobs), NaN where there is none."""
    rows = [change.logarithms(side, by_job=by_job) for change in compared]
    units = units or list(dict.fromkeys(unit for row in rows for unit in row))
    return np.array([[row.get(unit, math.nan) for unit in units] for row in rows])


def _verdict(p: float, value: float, low: float, high: float, limit: float) -> str:
    if p < ALPHA and abs(value) > limit:
        return REGRESSED if value > 0 else IMPROVED
    return UNCHANGED if -limit <= low and high <= limit else INCONCLUSIVE
