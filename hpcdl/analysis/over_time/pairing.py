"""Pairs of the same case in two sets of runs: values of both sides, or the reason why there are none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.over_time.series import CaseSeries, RunSeries


MEASURES: Final = ("step_seconds", "time_p50_seconds", "seconds_to_target")
"""Measures in their order; one that a launch of the baseline lacks is not compared."""

Value = tuple[str, str, float]
"""Job, run and number (s) of one launch."""


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

    launches: list[tuple[RunSeries, CaseSeries]]
    """Run and case, of each run that has it."""
    failures: list[str]
    absent: list[str]
    """Why it is not there, of each run that does not have it and does not say that it failed."""
    total: int
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
    before, now = _sides(baseline), _sides(candidate)
    names = [name for name, side in before.items() if side.launches]
    paired: list[Pair] = []
    for suite, case in dict.fromkeys([*names, *now]):
        after = now.get((suite, case)) or _nowhere(candidate, suite)
        if (suite, case) in names:
            paired += _of_case(suite, case, before[suite, case], after)
        else:
            disturbed = bool(before[suite, case].disturbed) if (suite, case) in before else False
            paired.append(_new(suite, case, after, disturbed=disturbed))
    return paired


def _sides(runs: Sequence[RunSeries]) -> dict[tuple[str, str], _Side]:
    """Return all cases of some runs, by suite and name; of cases without a result too."""
    names = [(case.suite, case.case) for run in runs for case in run.cases]
    names += [(run.suite, case) for run in runs for case in (*run.without_result, *run.disturbed)]
    sides = {name: _Side([], [], [], 0) for name in names}
    for run in runs:
        for one in run.cases:
            side = sides[one.suite, one.case]
            side.launches.append((run, one))
            side.failures.extend(filter(None, [one.failure]))
            side.total += 1
        here = {(case.suite, case.case) for case in run.cases}
        for name, side in sides.items():
            if name not in here and run.suite == name[0] and name[1] in run.disturbed:
                side.disturbed += 1
            elif name not in here and run.suite in {name[0], ""}:
                side.total += 1
                if name[1] in run.without_result:
                    side.failures.append(run.without_result[name[1]])
                else:
                    side.absent.append(_absence(run))
    return sides


def _nowhere(runs: Sequence[RunSeries], suite: str) -> _Side:
    """Return a case of ``suite`` that no run has."""
    absent = [_absence(run) for run in runs if run.suite in {suite, ""}]
    return _Side([], [], absent, len(absent))


def _absence(run: RunSeries) -> str:
    return "" if run.complete else "the run was interrupted"


def _new(suite: str, case: str, now: _Side, *, disturbed: bool) -> Pair:
    """Return a case without a value in the baseline; ``disturbed``: the baseline has it, but disturbed."""
    values = now.launches[-1][1].values if now.launches else {}
    measure = next((name for name in MEASURES if name in values), "result")
    candidate = now.values(measure, now.launches[-1][1].settings) if now.launches else []
    verdict, reason = ("failed", _failure(now)) if now.failures else ("new", "not in the baseline")
    if disturbed and not now.failures:
        verdict, reason = "inconclusive", "disturbed in all launches of the baseline"
    return Pair(suite, case, measure, [], candidate, verdict, reason)


def _failure(now: _Side) -> str:
    return f"{now.failures[0]}{_of(len(now.failures), now.total)}"


def _of(part: int, total: int) -> str:
    return f" ({part} of {total} launches)" if total > 1 else ""


def _of_case(suite: str, case: str, before: _Side, now: _Side) -> list[Pair]:
    settings = before.launches[-1][1].settings
    good = sum(launch.settings == settings and not launch.failure for _, launch in before.launches)
    values = {
        name: values for name in MEASURES if (values := before.values(name, settings)) and len(values) == good
    }
    first = next(iter(values), "result")

    def bad(verdict: str, reason: str, measure: str = first) -> Pair:
        return Pair(suite, case, measure, values.get(measure, []), now.values(measure, settings), verdict, reason)

    if now.failures:
        return [bad("failed", _failure(now))]
    if now.disturbed and not (now.absent or now.launches):
        return [bad("inconclusive", "disturbed in all launches of the candidate")]
    if now.absent or not now.launches:
        reason = f"no result{_of(len(now.absent), now.total)}"
        return [bad("missing", "; ".join(filter(None, [reason, *dict.fromkeys(now.absent)])))]
    other = next((launch.settings for _, launch in now.launches if launch.settings != settings), None)
    if other is not None:
        return [bad("missing", f"its settings differ: {_difference(settings, other)}")]
    if not values:
        return [bad("new", "no value in the baseline")]
    rows: list[Pair] = []
    for name, those in values.items():
        these = now.values(name, settings)
        lacking = len(now.launches) - len(these)
        if lacking:
            why = "target not reached" if name == "seconds_to_target" else "no value"
            rows.append(bad("missing", f"{why}{_of(lacking, now.total)}", name))
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
