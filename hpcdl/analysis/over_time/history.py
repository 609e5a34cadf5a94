"""Archive of runs as series: one number per case, measure, environment key and job, in the order of time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.over_time.series import CaseSeries, RunSeries

Matrix = npt.NDArray[np.float64]


class Key(NamedTuple):
    """Identity of a series."""

    case: str
    settings: str
    measure: str
    environment_key: str


@dataclass(frozen=True)
class Job:
    """Runs of one suite that one job made: launches of the same cases."""

    runs: Sequence[RunSeries]

    @property
    def date(self) -> str:
        """When the first run began, UTC, ISO 8601."""
        return self.runs[0].date

    @property
    def path(self) -> str:
        """Folder of the first run."""
        return self.runs[0].path

    @property
    def environment(self) -> dict[str, Any]:
        """Description of the last run's environment."""
        return self.runs[-1].environment

    @property
    def keys(self) -> frozenset[str]:
        """Environment keys of the cases."""
        return frozenset(case.environment_key for run in self.runs for case in run.cases)

    @property
    def hosts(self) -> list[str]:
        """Hosts of the ranks, each once."""
        ranks = [rank for run in self.runs for rank in run.environment.get("ranks") or ()]
        return list(dict.fromkeys(str(rank.get("hostname", "")) for rank in ranks))

    @property
    def disturbed(self) -> dict[str, str]:
        """Disturbed cases, which have no value, and the cause."""
        return {case: cause for run in self.runs for case, cause in run.disturbed.items()}

    def measured(self) -> dict[Key, list[float]]:
        """Return the values of each series, one per launch; failed cases have none."""
        rows: dict[Key, list[float]] = {}
        for case in (case for run in self.runs for case in run.cases if not case.failure):
            for measure, value in case.values.items():
                key = Key(case.case, case.settings, measure, case.environment_key)
                rows.setdefault(key, []).append(value)
        return rows


@dataclass(frozen=True)
class History:
    """Jobs of one suite, ascending in time, and their series."""

    suite: str
    jobs: Sequence[Job]
    keys: Sequence[Key]
    seconds: Matrix
    """(series, jobs): median over the launches of a job; NaN where a job has no value."""
    cases: dict[tuple[str, str], CaseSeries]
    """Description of each case, by name and settings: the newest."""

    @property
    def logs(self) -> Matrix:
        """(series, jobs): logarithms of the times."""
        return np.asarray(np.log(self.seconds), np.float64)

    def case(self, series: int) -> CaseSeries:
        """Return the description of the case of a series."""
        return self.cases[self.keys[series][:2]]

    @property
    def predecessors(self) -> dict[int, int]:
        """By series in a new environment the series of the same measure that was the newest before it."""
        known = np.isfinite(self.seconds)
        first = {row: int(job.argmax()) for row, job in enumerate(known)}
        alike: dict[tuple[str, ...], list[int]] = {}
        for row, key in enumerate(self.keys):
            alike.setdefault(key[:3], []).append(row)
        changes = {}
        for row, begin in first.items():
            newest = {
                other: int(np.flatnonzero(known[other, :begin])[-1])
                for other in alike[self.keys[row][:3]]
                if first[other] < begin
            }
            if newest:
                changes[row] = max(newest, key=lambda other: newest[other])
        return changes

    def environment_changes(self) -> list[int]:
        """Return the jobs whose environment keys differ from those of the job before."""
        return [
            number
            for number, (before, now) in enumerate(itertools.pairwise(self.jobs), 1)
            if before.keys and now.keys and before.keys != now.keys
        ]

    def missing(self, within: int = 10) -> list[tuple[str, str]]:
        """Return case and reason of each case that failed in the newest job, or that only jobs before have.

        Of a case that failed any job before counts, else those ``within``: a case may leave a suite. A disturbed
        case is not missing: it has a value, which does not count.
        """
        *before, newest = self.jobs
        reasons: dict[str, str] = {}
        for run in newest.runs:
            reasons |= {case.case: case.failure for case in run.cases if case.failure} | run.without_result
        now = {key.case for key in newest.measured()} | newest.disturbed.keys()
        recent = {key.case for job in before[-within:] for key in job.measured()}
        absent = (recent | ({key.case for key in self.keys} & reasons.keys())) - now
        return [(case, reasons.get(case, "not in the run")) for case in sorted(absent)]


def histories(runs: Iterable[RunSeries]) -> list[History]:
    """Return the history of each suite; runs without a date or cases are left out.

    A run whose cases are all disturbed stays: the newest run must not pass for lack of data.
    """
    by_suite: dict[str, dict[str, list[RunSeries]]] = {}
    for run in sorted(runs, key=lambda run: run.date):
        if run.date and (run.cases or run.without_result or run.disturbed):
            by_suite.setdefault(run.suite, {}).setdefault(run.job, []).append(run)
    return [_history(suite, [Job(job) for job in jobs.values()]) for suite, jobs in by_suite.items()]


def _history(suite: str, jobs: Sequence[Job]) -> History:
    measured = [job.measured() for job in jobs]
    keys = list(dict.fromkeys(key for seconds in measured for key in seconds))
    rows = {key: row for row, key in enumerate(keys)}
    seconds = np.full((len(keys), len(jobs)), np.nan)
    for column, one in enumerate(measured):
        for key, values in one.items():
            seconds[rows[key], column] = np.median(values)
    cases = {(case.case, case.settings): case for job in jobs for run in job.runs for case in run.cases}
    return History(suite, jobs, keys, seconds, cases)
