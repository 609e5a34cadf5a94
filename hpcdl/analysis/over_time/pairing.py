"""Pairs of each measure of each case on both sides of a comparison, and the cases that cannot be paired."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hpcdl.analysis.over_time.series import CaseSeries, RunSeries

FAILED, MISSING, NEW, INCONCLUSIVE = "failed", "missing", "new", "inconclusive"

MEASURE_NAMES: Final = {"step_seconds": "step", "time_p50_seconds": "p50", "seconds_to_target": "to target"}
"""Measures in their order, with their names in tables; one that a launch of the baseline lacks is not compared."""

Value = tuple[str, str, float]
"""Job, run and number (s) of one launch."""
Cases = Mapping[tuple[str, str], list[CaseSeries]]


@dataclass(frozen=True)
class Pair:
    """One measure of one case on both sides."""

    suite: str
    case: str
    measure: str
    baseline: list[Value]
    candidate: list[Value]
    verdict: str = ""
    """``failed``, ``missing``, ``new`` or ``inconclusive`` if the values cannot be compared; else empty."""
    reason: str = ""

    def logarithms(self, side: int, *, by_job: bool) -> dict[str, float]:
        """Return logarithms of the baseline's (0) or candidate's (1) values per run, or their median per job."""
        units: dict[str, list[float]] = {}
        for job, run, value in (self.baseline, self.candidate)[side]:
            units.setdefault(job if by_job else run, []).append(value)
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

    def values(self, measure: str, settings: str) -> list[Value]:
        return [
            (run.job, run.path, case.values[measure])
            for run, case in self.launches
            if not case.failure and case.settings == settings and measure in case.values
        ]


def pairs(baseline: Sequence[RunSeries], candidate: Sequence[RunSeries]) -> list[Pair]:
    """Pair each measure of each case, in the baseline's order; cases that the candidate alone has come last.

    Cases of one suite and name are the same case, but only with the settings of the baseline's last run. The
    candidate needs a result of each case in each of its runs of that suite. A disturbed launch is neither compared
    nor missing; a case without undisturbed launches on a side is inconclusive.
    """
    measured = [(case.suite, case.case) for run in baseline for case in run.cases]
    others = [(case.suite, case.case) for run in candidate for case in run.cases]
    others += [(run.suite, case) for run in candidate for case in (*run.without_result, *run.disturbed)]
    sides = [[(run, _by_name(run)) for run in runs] for runs in (baseline, candidate)]
    paired: list[Pair] = []
    for suite, case in dict.fromkeys([*measured, *others]):
        before, now = (_side(runs, suite, case) for runs in sides)
        paired += _of_case(suite, case, before, now) if before.launches else [_new(suite, case, before, now)]
    return paired


def _by_name(run: RunSeries) -> dict[tuple[str, str], list[CaseSeries]]:
    cases: dict[tuple[str, str], list[CaseSeries]] = {}
    for case in run.cases:
        cases.setdefault((case.suite, case.case), []).append(case)
    return cases


def _side(runs: Sequence[tuple[RunSeries, Cases]], suite: str, case: str) -> _Side:
    side = _Side()
    for run, cases in runs:
        here = cases.get((suite, case), [])
        side.launches += [(run, one) for one in here]
        side.failures += [one.failure for one in here if one.failure]
        side.total += len(here)
        if not here and run.suite == suite and case in run.disturbed:
            side.disturbed += 1
        elif not here and run.suite in {suite, ""}:
            side.total += 1
            if case in run.without_result:
                side.failures.append(run.without_result[case])
            else:
                side.absent.append("" if run.complete else "the run was interrupted")
    return side


def _new(suite: str, case: str, before: _Side, now: _Side) -> Pair:
    """Return a case without a value in the baseline, which may have it disturbed."""
    newest = now.launches[-1][1] if now.launches else None
    measure = next((name for name in MEASURE_NAMES if newest and name in newest.values), "result")
    candidate = now.values(measure, newest.settings) if newest else []
    verdict, reason = NEW, "not in the baseline"
    if now.failures:
        verdict, reason = FAILED, _failure(now)
    elif before.disturbed:
        verdict, reason = INCONCLUSIVE, "disturbed in all launches of the baseline"
    return Pair(suite, case, measure, [], candidate, verdict, reason)


def _failure(now: _Side) -> str:
    return f"{now.failures[0]}{_of(len(now.failures), now.total)}"


def _of(part: int, total: int) -> str:
    return f" ({part} of {total} launches)" if total > 1 else ""


def _of_case(suite: str, case: str, before: _Side, now: _Side) -> list[Pair]:
    settings = before.launches[-1][1].settings
    good = sum(launch.settings == settings and not launch.failure for _, launch in before.launches)
    values = {
        name: values for name in MEASURE_NAMES if (values := before.values(name, settings)) and len(values) == good
    }
    first = next(iter(values), "result")

    def bad(verdict: str, reason: str, measure: str = first) -> Pair:
        return Pair(suite, case, measure, values.get(measure, []), now.values(measure, settings), verdict, reason)

    if now.failures:
        return [bad(FAILED, _failure(now))]
    if now.disturbed and not (now.absent or now.launches):
        return [bad(INCONCLUSIVE, "disturbed in all launches of the candidate")]
    if now.absent or not now.launches:
        reason = f"no result{_of(len(now.absent), now.total)}"
        return [bad(MISSING, "; ".join(filter(None, [reason, *dict.fromkeys(now.absent)])))]
    other = next((launch.settings for _, launch in now.launches if launch.settings != settings), None)
    if other is not None:
        return [bad(MISSING, f"its settings differ: {_difference(settings, other)}")]
    if not values:
        return [bad(NEW, "no value in the baseline")]
    rows: list[Pair] = []
    for name, those in values.items():
        these = now.values(name, settings)
        lacking = len(now.launches) - len(these)
        if lacking:
            why = "target not reached" if name == "seconds_to_target" else "no value"
            rows.append(bad(MISSING, f"{why}{_of(lacking, now.total)}", name))
        else:
            rows.append(Pair(suite, case, name, those, these))
    return rows


def _difference(text: str, other: str) -> str:
    """Return the settings in which two texts of JSON differ."""
    before, now = json.loads(text), json.loads(other)
    return ", ".join(
        f"{key} was {before.get(key, 'default')} and is {now.get(key, 'default')}"
        for key in dict.fromkeys((*before, *now))
        if before.get(key) != now.get(key)
    )
