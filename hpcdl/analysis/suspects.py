"""Hosts and links that may be slow, from the link measurements of an archive, else from its cases' times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.culprits import culprits, evidence, shared_departures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.history import History, Job

Matrix = npt.NDArray[np.float64]

LONG: Final = 1 << 16
"""Bytes of a message whose time is that of the links, at least."""
TRANSIENT: Final = 0.005
"""Density of outliers of a host's median over its links: one host in a thousand is slow for one run."""


@dataclass(frozen=True)
class Named:
    """Host or link that is slow."""

    name: str
    kind: Literal["host", "link"]
    source: Literal["link measurements", "times of the cases"]
    first: int
    """First slow run."""
    found: int
    """Run with which it was named."""
    ended: int | None
    """First of the runs that cleared it; None while it is slow."""
    probability: float
    ratio: float
    """Its time by the usual one."""
    runs: int
    """Runs in which it took part and was slow."""


def named(history: History) -> list[Named]:
    """Return the slow hosts, and the slow links between other hosts, in the order in which they were named."""
    hosts = _by_links(history, "host_slowness")
    if hosts:
        found = _named(hosts, "host", "link measurements", TRANSIENT)
        slow = {one.name for one in found}
        links = {
            pair: values
            for pair, values in _by_links(history, "link_slowness").items()
            if not slow & set(pair.split(" - "))
        }
        return sorted((*found, *_named(links, "link", "link measurements")), key=lambda one: one.found)
    return _by_times(history)


def _by_links(history: History, field: str) -> dict[str, npt.NDArray[np.float64]]:
    """Return by name (jobs,) logarithms of the slowness, the median over cases and launches; NaN if missing."""
    found: dict[str, npt.NDArray[np.float64]] = {}
    for number, job in enumerate(history.jobs):
        seen: dict[str, list[float]] = {}
        for case in (case for run in job.runs for case in run.cases if not case.failure):
            for name, value in getattr(case, field).items():
                seen.setdefault(name, []).append(value)
        for name, values in seen.items():
            row = found.setdefault(name, np.full(len(history.jobs), np.nan))
            row[number] = np.log(np.median(values))
    return found


def _by_times(history: History) -> list[Named]:
    """Judge the hosts by the cases' times: those of all cases on as many ranks are one number per job."""
    names = list(dict.fromkeys(host for job in history.jobs for host in job.hosts))
    if len(names) < 2 or not len(history.keys):
        return []
    logs = history.logs
    sizes = [history.case(row).message_bytes or 0 for row in range(len(logs))]
    rows = [row for row, size in enumerate(sizes) if size >= LONG] or list(range(len(logs)))
    ratios, shown = [], []
    for ranks in sorted({history.case(row).ranks for row in rows}):
        mine = [row for row in rows if history.case(row).ranks == ranks]
        times = shared_departures(logs[mine])
        there = np.array([[name in _hosts(job, ranks) for job in history.jobs] for name in names])
        departures = np.where(there & np.isfinite(times), times, np.nan)
        ratios.append(evidence(departures))
        shown.append(departures)
    total = np.sum(ratios, axis=0)
    with np.errstate(all="ignore"):
        usual = np.fmax.reduce(shown)
    return [
        Named(names[one.suspect], "host", "times of the cases", *_fields(one)) for one in culprits(total, usual)
    ]


def _hosts(job: Job, ranks: int) -> set[str]:
    return {str(rank.get("hostname", "")) for rank in (job.environment.get("ranks") or ())[:ranks]}


def _named(
    departures: Mapping[str, npt.NDArray[np.float64]],
    kind: Literal["host", "link"],
    source: Literal["link measurements", "times of the cases"],
    *outliers: float,
) -> list[Named]:
    if not departures:
        return []
    names = list(departures)
    table = np.array([departures[name] for name in names])
    found = culprits(evidence(table, *outliers), table)
    return [Named(names[one.suspect], kind, source, *_fields(one)) for one in found]


def _fields(one: Any) -> Sequence[Any]:
    return one.first, one.found, one.ended, one.probability, one.ratio, one.runs
