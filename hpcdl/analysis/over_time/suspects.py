"""Hosts and links that may be slow, from the link measurements of an archive, else from its cases' times."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.over_time.culprits import culprits, evidence, shared_departures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.over_time.culprits import Culprit
    from hpcdl.analysis.over_time.history import History, Job


Matrix = npt.NDArray[np.float64]
Kind = Literal["host", "link", "hosts"]
Source = Literal["link measurements", "times of the cases"]

LONG: Final = 1 << 16
"""Bytes of a message whose time is that of the links, at least."""
TRANSIENT: Final = 0.05
"""Density of outliers of a host's fastest link: one host in a thousand is slow for one run."""
GROUP: Final = 3
"""Slow hosts of one switch, at least, that are one finding,"""
GROUP_SHARE: Final = 0.4
"""if they are at least this share of its hosts."""


@dataclass(frozen=True)
class Suspect:
    """Host or link, or hosts of one switch, that are slow."""

    name: str
    kind: Kind
    source: Source
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


class Spread(NamedTuple):
    """Usual spread of the hosts: lasting differences of which none is a finding."""

    slowest: str
    """Host."""
    ratio: float
    """Its time by that of the usual host."""
    deviation: float
    """Standard deviation of the hosts' levels, as a logarithm."""


def suspects(history: History, groups: Mapping[str, str]) -> tuple[list[Suspect], Spread | None]:
    """Return the slow hosts, and the slow links between other hosts, in the order in which they were named.

    And the spread of the hosts if none is slow and links were measured. ``groups``: switch of hosts; of the
    others it is the name without its last number.
    """
    hosts = _by_links(history, "host_slowness")
    if not hosts:
        return _grouped(_by_times(history), [host for job in history.jobs for host in job.hosts], groups), None
    named = _named(hosts, "host", TRANSIENT)
    slow = {suspect.name for suspect in named}
    links = {
        pair: values
        for pair, values in _by_links(history, "link_slowness").items()
        if not slow & set(pair.split(" - "))
    }
    spread = None if named else _spread(hosts)
    named = [*_grouped(named, list(hosts), groups), *_named(links, "link")]
    return sorted(named, key=lambda suspect: suspect.found), spread


def _by_links(history: History, field: str) -> dict[str, npt.NDArray[np.float64]]:
    """Return by name (jobs,) logarithms of the slowness, the median over cases and launches; NaN if missing."""
    evidence: dict[str, npt.NDArray[np.float64]] = {}
    for number, job in enumerate(history.jobs):
        seen: dict[str, list[float]] = {}
        for case in (case for run in job.runs for case in run.cases if not case.failure):
            for name, value in getattr(case, field).items():
                seen.setdefault(name, []).append(value)
        for name, values in seen.items():
            row = evidence.setdefault(name, np.full(len(history.jobs), np.nan))
            row[number] = np.log(np.median(values))
    return evidence


def _by_times(history: History) -> list[Suspect]:
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
        ratios.append(evidence(departures, lasting=False))
        shown.append(departures)
    total = np.sum(ratios, axis=0)
    with np.errstate(all="ignore"):
        usual = np.fmax.reduce(shown)
    return [
        _suspect(culprit, names, "host", "times of the cases") for culprit in culprits(total, usual, shared=True)
    ]


def _hosts(job: Job, ranks: int) -> set[str]:
    return {str(rank.get("hostname", "")) for rank in (job.environment.get("ranks") or ())[:ranks]}


def _named(departures: Mapping[str, npt.NDArray[np.float64]], kind: Kind, *outliers: float) -> list[Suspect]:
    if not departures:
        return []
    table = np.array(list(departures.values()))
    named = culprits(evidence(table, *outliers), table)
    return [_suspect(culprit, list(departures), kind, "link measurements") for culprit in named]


def _suspect(culprit: Culprit, names: Sequence[str], kind: Kind, source: Source) -> Suspect:
    return Suspect(
        names[culprit.suspect],
        kind,
        source,
        culprit.first,
        culprit.found,
        culprit.ended,
        culprit.probability,
        culprit.ratio,
        culprit.runs,
    )


def _spread(departures: Mapping[str, npt.NDArray[np.float64]]) -> Spread:
    levels = {name: float(np.nanmedian(row)) for name, row in departures.items()}
    slowest, every = max(levels, key=lambda name: levels[name]), list(levels.values())
    return Spread(slowest, float(np.exp(levels[slowest] - np.median(every))), float(np.std(every, ddof=1)))


def switch_of(host: str, groups: Mapping[str, str]) -> str:
    """Return the switch of a host: that of ``groups``, else its name without the last number, ``rack2-``."""
    return groups.get(host) or re.sub(r"\d+$", "", host)


def _grouped(suspects: Sequence[Suspect], hosts: Sequence[str], groups: Mapping[str, str]) -> list[Suspect]:
    """Return the suspects, with a large share of one switch's hosts that are slow now as one."""
    members: dict[str, set[str]] = {}
    for host in hosts:
        members.setdefault(switch_of(host, groups), set()).add(host)
    kept = list(suspects)
    for switch, all_hosts in members.items():
        slow = [suspect for suspect in suspects if suspect.ended is None and suspect.name in all_hosts]
        needed = max(GROUP, int(np.ceil(GROUP_SHARE * len(all_hosts))))
        if len(slow) < needed:
            continue
        names = ", ".join(sorted(suspect.name for suspect in slow))
        kept = [suspect for suspect in kept if suspect not in slow]
        kept.append(
            Suspect(
                f"{len(slow)} of {len(all_hosts)} of {switch} ({names})",
                "hosts",
                slow[0].source,
                min(suspect.first for suspect in slow),
                slow[needed - 1].found,
                None,
                min(suspect.probability for suspect in slow),
                float(np.median([suspect.ratio for suspect in slow])),
                max(suspect.runs for suspect in slow),
            )
        )
    return kept
