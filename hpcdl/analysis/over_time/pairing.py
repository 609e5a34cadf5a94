"""Pairs of each measure of each case on both sides of a comparison, and the cases that cannot be paired."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hpcdl.analysis.over_time.series import CaseSeries, RunSeries
from hpcdl.analysis.run.record import group_by_key

FAILED, MISSING, NEW, INCONCLUSIVE = "failed", "missing", "new", "inconclusive"

MEASURE_NAMES: Final = {"step_seconds": "step", "time_p50_seconds": "", "seconds_to_target": "time to target"}
"""Measures in their order, with their names; one that a launch of the baseline lacks is not compared."""

Value = tuple[str, str, float]
"""Job, run and number (s) of one launch."""


def label(case: str, measure: str) -> str:
    """Return a case with the name of its measure; the median time of an operation has none."""
    name = MEASURE_NAMES.get(measure, "")
    return f"{case} ({name})" if name else case


@dataclass(frozen=True)
class Change:
    """One measure of one case on both sides; numbers are NaN where they are not known."""

    suite: str
    case: str
    measure: str
    values: tuple[list[Value], list[Value]]
    """Of the baseline and of the candidate."""
    verdict: str = ""
    """``failed``, ``missing``, ``new`` or ``inconclusive`` without a comparison; empty before one."""
    reason: str = ""
    """An error, missing launches, an accepted regression, or launches apart from the others; else empty."""
    baseline: float = math.nan
    """Geometric mean over units (s)."""
    candidate: float = math.nan
    ratio: float = math.nan
    """Candidate / baseline."""
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    """Adjusted."""
    smallest: float = math.nan
    """Smallest ratio that would be found with 80 % power if no other measure changed."""
    largest: float = math.nan
    """Largest ratio that is not excluded: bound of the interval, or of the shares of slow launches."""
    needed: float = math.nan
    """Launches or jobs a side with which 80 % of the intervals would be within the limit if nothing changed."""
    by_share: bool = False
    """True for a regression of the share of slow launches; the ratio is of all launches, without interval."""

    @property
    def launches(self) -> tuple[int, int]:
        """Number of launches of the baseline and of the candidate."""
        return len(self.values[0]), len(self.values[1])

    def logarithms(self, side: int, *, by_job: bool) -> dict[str, float]:
        """Return logarithms of the baseline's (0) or candidate's (1) values per run, or their median per job."""
        units = group_by_key((job if by_job else run, value) for job, run, value in self.values[side])
        return {unit: float(np.median(np.log(values))) for unit, values in units.items()}


@dataclass
class _Side:
    """A case in the runs of one side that should have it."""

    launches: list[tuple[RunSeries, CaseSeries]] = field(default_factory=list)
    """(run, case) of each run that contains the case."""
    failures: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    """Reason of each run that lacks the case without saying that it failed."""
    total: int = 0
    """Launches that should have a result; without disturbed ones."""
    disturbed: int = 0
    """Launches that are left out because the case was disturbed."""

    @property
    def failure(self) -> str:
        """The first failure, and their number."""
        return f"{self.failures[0]}{_of(len(self.failures), self.total)}"

    def values(self, measure: str, settings: str) -> list[Value]:
        """Return the values of the good launches with these settings."""
        return [
            (run.job, run.path, case.values[measure])
            for run, case in self.launches
            if not case.failure and case.settings == settings and measure in case.values
        ]


def pairs(baseline: Sequence[RunSeries], candidate: Sequence[RunSeries]) -> list[Change]:
    """Pair each measure of each case, in the baseline's order; cases that the candidate alone has come last.

    Cases of one suite and name are the same case, but only with the settings of the baseline's last run. The
    candidate needs a result of each case in each of its runs of that suite. A disturbed launch is neither compared
    nor missing; a case without undisturbed launches on a side is inconclusive.
    """
    names = [(case.suite, case.case) for run in (*baseline, *candidate) for case in run.cases]
    names += [(run.suite, case) for run in candidate for case in run.without_result]
    names += [(run.suite, case) for run in (*baseline, *candidate) for case in run.disturbed]
    paired: list[Change] = []
    for suite, case in dict.fromkeys(names):
        before, now = (_side(runs, suite, case) for runs in (baseline, candidate))
        paired += _of_case(suite, case, before, now) if before.launches else [_new(suite, case, before, now)]
    return paired


def _side(runs: Sequence[RunSeries], suite: str, case: str) -> _Side:
    side = _Side()
    for run in runs:
        launches = run.by_name.get((suite, case), [])
        side.launches += [(run, launch) for launch in launches]
        side.failures += [launch.failure for launch in launches if launch.failure]
        side.total += len(launches)
        if not launches and run.suite == suite and case in run.disturbed:
            side.disturbed += 1
        elif not launches and run.suite in {suite, ""}:
            side.total += 1
            if case in run.without_result:
                side.failures.append(run.without_result[case])
            else:
                side.absent.append("" if run.complete else "the run was interrupted")
    return side


def _new(suite: str, case: str, before: _Side, now: _Side) -> Change:
    """Return a case without a value in the baseline, which may have it disturbed."""
    newest = now.launches[-1][1] if now.launches else None
    measure = next((name for name in MEASURE_NAMES if newest and name in newest.values), "result")
    values = list[Value](), now.values(measure, newest.settings) if newest else []
    if now.failures:
        return Change(suite, case, measure, values, FAILED, now.failure)
    if before.disturbed:
        return Change(suite, case, measure, values, INCONCLUSIVE, "disturbed in all launches of the baseline")
    return Change(suite, case, measure, values, NEW, "not in the baseline")


def _of(part: int, total: int) -> str:
    return f" ({part} of {total} launches)" if total > 1 else ""


def _of_case(suite: str, case: str, before: _Side, now: _Side) -> list[Change]:
    settings = before.launches[-1][1].settings
    good = sum(launch.settings == settings and not launch.failure for _, launch in before.launches)
    every = {name: before.values(name, settings) for name in MEASURE_NAMES}
    values = {name: values for name, values in every.items() if 0 < len(values) == good}
    first = next(iter(values), "result")

    def row(verdict: str, reason: str, measure: str = first) -> Change:
        sides = values.get(measure, []), now.values(measure, settings)
        return Change(suite, case, measure, sides, verdict, reason)

    if now.failures:
        return [row(FAILED, now.failure)]
    if now.disturbed and not (now.absent or now.launches):
        return [row(INCONCLUSIVE, "disturbed in all launches of the candidate")]
    if now.absent or not now.launches:
        reason = f"no result{_of(len(now.absent), now.total)}"
        return [row(MISSING, "; ".join(filter(None, [reason, *dict.fromkeys(now.absent)])))]
    other = next((launch.settings for _, launch in now.launches if launch.settings != settings), None)
    if other is not None:
        return [row(MISSING, f"its settings differ: {_difference(settings, other)}")]
    if not values:
        return [row(NEW, "no value in the baseline")]
    rows = []
    for name in values:
        lacking = len(now.launches) - len(now.values(name, settings))
        why = "target not reached" if name == "seconds_to_target" else "no value"
        rows.append(row(MISSING, f"{why}{_of(lacking, now.total)}", name) if lacking else row("", "", name))
    return rows


def _difference(text: str, other: str) -> str:
    """Return the settings in which two texts of JSON differ."""
    before, now = json.loads(text), json.loads(other)
    return ", ".join(
        f"{key} was {before.get(key, 'default')} and is {now.get(key, 'default')}"
        for key in dict.fromkeys((*before, *now))
        if before.get(key) != now.get(key)
    )
