"""One number per case and measure of each run, and an archive of runs as series, which are compared over time.

A run is one launch: its iterations are not independent, so that each of its cases gives one number per measure
(Hoefler & Belli, SC15). Measures are times in seconds, so that a larger value is a worse one:

- ``train``, ``replay``: ``step_seconds``, the median step (for strategies without lock-step the mean time of a
  global batch), and ``seconds_to_target``, the training time until the target accuracy was reached.
- ``collective``, ``pairwise``: ``time_p50_seconds``, the median time of the slowest rank.

Left out are simulated cases, whose times are a model's, and disturbed cases, in which other processes used the
ranks' cores (:mod:`hpcdl.analysis.run.disturbance`), as long as most runs of a measure are undisturbed. If half
of them or more are disturbed, that is their usual state, and their variation contains it. A disturbed case that
failed stays: it failed. Slow hosts and links are searched for in disturbed cases too.
"""

import datetime as dt
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.network.links import Links, links
from hpcdl.analysis.network.nodes import Nodes, nodes
from hpcdl.analysis.run.disturbance import slurm_job
from hpcdl.analysis.run.launches import Launch, at_target, launches
from hpcdl.analysis.run.record import group_by_key
from hpcdl.analysis.statistics.differences import Matrix
from hpcdl.cases.keys.suite_tables import role_of
from hpcdl.registry import label
from hpcdl.trace.files import JsonMapping, JsonObject
from hpcdl.trace.link_counters import recorded
from hpcdl.trace.run import Run

LEFT_OUT: Final = ("counters", "counters_after", "failed_cases", "cases_not_run")
"""Entries of an environment's description that are no property of the environment, and large."""
SERIES_TABLES: Final = ("steps", "evaluations", "ranks")
"""Tables of a run from which series are computed."""
OF_RANK: Final = ("hostname", "slurm_node", "affinity", "threads")
"""Entries of a rank's description that are kept."""


@dataclass(frozen=True, slots=True)
class CaseSeries:
    """One case of one run."""

    suite: str
    case: str
    settings: str
    """Settings that change the measurement, by key, as sorted JSON: cases of one name may differ."""
    kind: str
    ranks: int
    message_bytes: int | None
    environment_key: str
    values: dict[str, float]
    """One number per measure; a measure without a value is absent."""
    failure: str
    """Reason why the values do not count: an error, or a check that failed; empty for a good case."""
    host_slowness: dict[str, float]
    """Of an exchange between all pairs of hosts: time of each host / of the usual host; else empty."""
    link_slowness: dict[str, float]
    """Likewise the time of each link / of the median link; the key is both hosts, "a - b"."""
    collective: str = ""
    """Operation of a collective case."""
    nodes: int = 1
    identity: str = ""
    """:attr:`hpcdl.trace.run.Run.identities`."""
    node_slowness: dict[str, float] = field(default_factory=dict)
    """Of a node case: time of each host's own work / of the usual host's; else empty."""


@dataclass(frozen=True)
class RunSeries:
    """One run."""

    path: str
    date: str
    """When the run began, ISO 8601, as recorded; empty if unknown."""
    job: str
    """Identity of the job: Slurm's number, else the folder that holds the launches, else the run itself."""
    suite: str
    """Name of the suite; empty for a run without cases."""
    complete: bool
    """True if all cases of the suite are included."""
    environment: JsonObject
    """Description of the environment (:mod:`hpcdl.trace.recorder`), with the growth of counters of links."""
    environments: dict[str, JsonObject]
    """Environments of all cases, by key."""
    cases: tuple[CaseSeries, ...]
    without_result: dict[str, str]
    """Cases that failed, or could not be run, by name: the reason."""
    disturbed: dict[str, str]
    """Disturbed cases, which are left out and say neither good nor bad, by name: the disturbance."""
    simulated: int
    """Simulated cases, which are left out."""
    identities: tuple[str, ...] = ()
    """:attr:`hpcdl.trace.run.Run.identities` of all cases; empty in series that an older version kept."""
    disturbed_cases: tuple[CaseSeries, ...] = ()
    """Disturbed cases that did not fail."""

    @cached_property
    def by_name(self) -> dict[tuple[str, str], list[CaseSeries]]:
        """Cases by suite and name."""
        return group_by_key(((case.suite, case.case), case) for case in self.cases)

    @cached_property
    def began(self) -> dt.datetime | None:
        """When the run began, in UTC; None if the date is unknown, wrong or without its offset from UTC."""
        try:
            date = dt.datetime.fromisoformat(self.date)
            return date.astimezone(dt.UTC) if date.tzinfo else None
        except (ValueError, OverflowError):  # text; the first or last day that a date can have
            return None


def median_slowness(cases: Iterable[CaseSeries], kind: str) -> dict[str, float]:
    """Return the median slowness of each host or link over cases; ``kind``: ``host``, ``link`` or ``node``."""
    ratios = group_by_key(item for case in cases for item in getattr(case, f"{kind}_slowness").items())
    return {name: median(of_name) for name, of_name in ratios.items()}


def series_of(run: Run) -> RunSeries:
    """Reduce a run to one number per case and measure."""
    every = launches(run)
    exchanges = {str(link.record.case): link for link in links(run)}
    is_emulated = bool(run.environment.get("emulated"))  # then hosts that work together share cores
    works = {
        str(node.record.case): node for node in nodes(run) if not is_emulated or node.record.pattern == "alone"
    }
    measured = [
        (_case(launch, exchanges, works, identity), launch.disturbed)
        for launch, identity in zip(every, run.identities, strict=True)
        if not launch.record.network
    ]
    return RunSeries(
        path=str(run.path),
        date=str(run.environment.get("date") or ""),
        job=job_of(run.path, run.environment),
        suite=str(every[0].record.suite or "") if every else "",
        complete=run.complete,
        environment=_kept(run.environment),
        environments={key: _kept(env) for key, env in run.environments.items()},
        cases=tuple(case for case, disturbed in measured if case.failure or not disturbed),
        without_result={
            str(rank.get("case")): str(rank.get("error"))
            for name in ("failed_cases", "cases_not_run")
            for rank in run.environment.get(name) or ()
        },
        disturbed={case.case: disturbed for case, disturbed in measured if disturbed and not case.failure},
        simulated=len(every) - len(measured),
        identities=tuple(run.identities),
        disturbed_cases=tuple(case for case, disturbed in measured if disturbed and not case.failure),
    )


def _case(launch: Launch, exchanges: Mapping[str, Links], works: Mapping[str, Nodes], identity: str) -> CaseSeries:
    record, exchange = launch.record, exchanges.get(str(launch.record.case))
    work = works.get(str(record.case))
    settings = {key: label(value) for key, value in record.settings.items() if role_of(key) != "sampling"}
    wrong = record.correct is False
    return CaseSeries(
        suite=str(record.suite or ""),
        case=record.case or f"{record.kind}-{record.aggregation or 'none'}-p{record.ranks}",
        settings=json.dumps(settings, sort_keys=True),
        kind=record.kind,
        ranks=record.ranks,
        message_bytes=record.message_bytes,
        environment_key=str(record.environment_key or ""),
        values=_values(launch),
        failure=str(record.error or ("a check of the result failed" if wrong else "")),
        host_slowness={} if exchange is None else exchange.host_slowness(),
        link_slowness={} if exchange is None else exchange.link_slowness(),
        collective=str(record.collective or "") if record.kind == "collective" else "",
        nodes=record.nodes or 1,
        identity=identity,
        node_slowness={} if work is None else work.slowness(),
    )


def _values(launch: Launch) -> dict[str, float]:
    measures = {"time_p50_seconds": launch.typical(launch.seconds) if len(launch.seconds) else None}
    if launch.record.is_training:
        target = at_target(launch, "training_seconds")
        measures = {"step_seconds": measures["time_p50_seconds"], "seconds_to_target": target}
    return {name: float(value) for name, value in measures.items() if value and 0 < value < math.inf}


def job_of(path: Path, environment: JsonMapping) -> str:
    """Return the identity of a run's job, see :attr:`RunSeries.job`."""
    if number := slurm_job(environment):
        return f"Slurm job {number}"
    folder = (path if path.is_dir() else path.parent).resolve()
    return str(folder.parent if folder.name.startswith("launch-") else path.resolve())


def _kept(environment: JsonMapping) -> JsonObject:
    kept = {name: value for name, value in environment.items() if name not in LEFT_OUT}
    ranks = [{name: rank[name] for name in OF_RANK if name in rank} for rank in environment.get("ranks") or ()]
    return {**kept, "ranks": ranks, "link_counters": recorded(environment)}


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
    def began(self) -> dt.datetime:
        """When the first run began, in UTC."""
        return min(run.began for run in self.runs if run.began)

    @property
    def path(self) -> str:
        """Folder of the first run."""
        return self.runs[0].path

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

    @property
    def good(self) -> list[CaseSeries]:
        """Cases that did not fail."""
        return [case for run in self.runs for case in run.cases if not case.failure]

    @property
    def disturbed_cases(self) -> list[CaseSeries]:
        """Disturbed cases that did not fail."""
        return [case for run in self.runs for case in run.disturbed_cases]

    @property
    def not_failed(self) -> list[CaseSeries]:
        """Good and disturbed cases."""
        return self.good + self.disturbed_cases

    def measured(self, *, disturbed: bool = False) -> dict[Key, list[float]]:
        """Return the values of each series, one per launch; those of good, or of disturbed cases."""
        return group_by_key(
            (Key(case.case, case.settings, measure, case.environment_key), value)
            for case in (self.disturbed_cases if disturbed else self.good)
            for measure, value in case.values.items()
        )


@dataclass(frozen=True)
class History:
    """Jobs of one suite, ascending in time, and their series."""

    suite: str
    jobs: Sequence[Job]
    keys: Sequence[Key]
    seconds: Matrix
    """(series, jobs): median over the launches of a job; NaN where a job has no value."""
    cases: dict[tuple[str, str], CaseSeries]

    @property
    def logs(self) -> Matrix:
        """(series, jobs): logarithms of the times."""
        return np.asarray(np.log(self.seconds), np.float64)

    def case(self, series: int) -> CaseSeries:
        """Return the description of the case of a series."""
        return self.cases[self.keys[series][:2]]

    @cached_property
    def measures(self) -> dict[tuple[str, ...], list[int]]:
        """Series of each measure of a case, in all environments, by the key without the environment."""
        return group_by_key((key[:3], row) for row, key in enumerate(self.keys))

    @property
    def predecessors(self) -> dict[int, int]:
        """By series in a new environment the series of the same measure that was the newest before it."""
        runs = [np.flatnonzero(np.isfinite(seconds)) for seconds in self.seconds]
        rows = {}
        for row, key in enumerate(self.keys):
            begin = runs[row][0]
            newest = {other: runs[other][runs[other] < begin].max(initial=-1) for other in self.measures[key[:3]]}
            if max(newest.values()) >= 0:
                rows[row] = max(newest, key=lambda other: newest[other])
        return rows

    def environment_changes(self) -> list[int]:
        """Return the jobs whose environment keys differ from those of the job before."""
        return [
            number
            for number, (before, now) in enumerate(itertools.pairwise(self.jobs), 1)
            if before.keys and now.keys and before.keys != now.keys
        ]


def histories(runs: Iterable[RunSeries]) -> list[History]:
    """Return the history of each suite, runs in the order of time; those without a date or cases are left out.

    A run whose cases are all disturbed stays: the newest run must not pass for lack of data.
    """
    by_suite: dict[str, dict[str, list[RunSeries]]] = {}
    for run in sorted((run for run in runs if run.began), key=attrgetter("began")):
        if run.cases or run.without_result or run.disturbed:
            by_suite.setdefault(run.suite, {}).setdefault(run.job, []).append(run)
    return [_history(suite, list(map(Job, jobs.values()))) for suite, jobs in by_suite.items()]


def _history(suite: str, jobs: Sequence[Job]) -> History:
    measured = [job.measured() for job in jobs]
    disturbed = [job.measured(disturbed=True) for job in jobs]
    keys = list(dict.fromkeys(key for values in (*measured, *disturbed) for key in values))
    rows = [
        [[median(values.get(key, [math.nan])) for values in side] for key in keys]
        for side in (measured, disturbed)
    ]
    clean, spoiled = np.array(rows, np.float64).reshape(2, len(keys), len(jobs))
    only_spoiled = np.isnan(clean) & np.isfinite(spoiled)
    # a run is judged by the runs up to it, so that a later one never changes which of them count
    usual = 2 * only_spoiled.cumsum(axis=1) >= (only_spoiled | np.isfinite(clean)).cumsum(axis=1)
    seconds = np.where(only_spoiled & usual, spoiled, clean)
    runs = [run for job in jobs for run in job.runs]
    cases = {(case.case, case.settings): case for run in runs for case in (*run.disturbed_cases, *run.cases)}
    return History(suite, jobs, keys, seconds, cases)
