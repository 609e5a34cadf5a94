"""Hosts and links that are slow since some run, although each run may have other hosts.

They are found in the link measurements of an archive, else in its cases' times
(:mod:`hpcdl.analysis.over_time.explanations`). By links, a suspect is slow in a run if its time departs from the
usual one beyond noise. It is named if it is slow in so many of its runs in a row that chance does not explain it,
by the share of slow runs of others. Two usual runs in a row clear a suspect.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.over_time.change_points import quantiles
from hpcdl.analysis.over_time.explanations import explanations
from hpcdl.analysis.over_time.series import History
from hpcdl.analysis.statistics.estimates import Vector

Matrix = npt.NDArray[np.float64]
Kind = Literal["host", "link", "hosts"]
Source = Literal["link measurements", "times of the cases"]

SLOW: Final = 0.05
"""Least departure of a slow run, as a logarithm."""
DEVIATIONS: Final = 4.0
"""Least departure of a slow run in standard deviations of the noise."""
CHANCE: Final = 0.05
"""Probability, over all suspects, of as many slow runs in a row by chance."""
WINDOW: Final = 60
"""Runs by which chance is known; a suspect that takes part in none of them is slow no more."""
MIN_RUNS: Final = 5
"""Least number of values for an estimate."""
PRIOR_SPREAD: Final = 0.03
"""Standard deviation of the level, as a logarithm, that is expected of hosts of which few are known."""
USUAL_SPREAD: Final = 3.0
"""Standard deviations of the level that lasting differences reach (chosen by simulation)."""
USUAL: Final = (0.05, 0.2)
"""Quantiles of times of runs that are usual,"""
USUAL_DEVIATIONS: Final = 0.803
"""and their distance in standard deviations of the noise."""
LONG: Final = 1 << 16
"""Bytes of a message whose time is that of the links, at least."""
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
    found: int
    """Run with which it was named."""
    ended: int | None
    """First of the runs that cleared it; None while it is slow."""
    ratio: float
    """Its time by the usual one, the median of its slow runs."""
    runs: int
    """Runs in which it took part and was slow."""


def suspects(history: History, groups: Mapping[str, str]) -> list[Suspect]:
    """Return the slow hosts, and the slow links between other hosts, in the order in which they were named.

    ``groups``: switch of hosts; of the others it is the name without its last number.
    """
    hosts = _by_links(history, "host_slowness")
    if not hosts:
        return _grouped(_by_times(history), [host for job in history.jobs for host in job.hosts], groups)
    named = by_departures(hosts, "host")
    slow = {suspect.name for suspect in named}
    links = {
        pair: values
        for pair, values in _by_links(history, "link_slowness").items()
        if not slow & set(pair.split(" - "))
    }
    every = [*_grouped(named, list(hosts), groups), *by_departures(links, "link")]
    return sorted(every, key=lambda suspect: suspect.found)


def _by_links(history: History, field: str) -> dict[str, Vector]:
    """Return by name (jobs,) logarithms of the slowness, the median over cases and launches; NaN if missing."""
    departures: dict[str, Vector] = {}
    for number, job in enumerate(history.jobs):
        seen: dict[str, list[float]] = {}
        for case in (case for run in job.runs for case in run.cases if not case.failure):
            for name, value in getattr(case, field).items():
                seen.setdefault(name, []).append(value)
        for name, values in seen.items():
            row = departures.setdefault(name, np.full(len(history.jobs), np.nan))
            row[number] = np.log(np.median(values))
    return departures


def by_departures(departures: Mapping[str, Vector], kind: Kind) -> list[Suspect]:
    """Return the suspects that were slow by ``departures``: by name (runs,), NaN where it did not take part."""
    table = np.array(list(departures.values()))
    if np.isfinite(table).sum() < MIN_RUNS:
        return []
    usual = _usual(table)
    slow = table - usual > max(SLOW, DEVIATIONS * _deviation(table - usual))
    there = np.isfinite(table)
    counts, every = slow.sum(axis=0), there.sum(axis=0)
    found = []
    for row, name in enumerate(departures):
        others = counts - slow[row], every - there[row]
        for first, number, ended in _episodes(slow[row], there[row], *others, len(table)):
            found.append(_suspect(name, kind, "link measurements", (first, number, ended), table[row], slow[row]))
    return sorted(found, key=lambda suspect: suspect.found)


def _usual(departures: Matrix) -> Matrix:
    """(suspects, runs): usual departure of each suspect in each run, which lasting differences change.

    It is that of the suspect's own runs before, or while there are few that of the slowest of a usual spread. The
    spread is from the 40 and 70 % quantiles of the levels, because slow hosts are fewer than 30 %.
    """
    levels = np.array([np.nanmedian(row) for row in departures])
    center, upper = np.quantile(levels, [0.4, 0.7])
    measured = float(upper - center) / 0.777
    variance = (len(levels) * measured**2 + MIN_RUNS * PRIOR_SPREAD**2) / (len(levels) + MIN_RUNS)
    limit = USUAL_SPREAD * math.sqrt(variance)
    usual = np.full(departures.shape, center + limit)
    for suspect, row in enumerate(departures):
        runs, own = np.flatnonzero(np.isfinite(row)), math.inf
        for place, run in enumerate(runs[MIN_RUNS:], MIN_RUNS):
            own = min(own, float(np.quantile(row[runs[:place]], 0.4)))
            usual[suspect, run] = center + min(max(own - center, -limit), limit)
    return usual


def _deviation(departures: Matrix) -> float:
    """Return the standard deviation of successive departures of a suspect, from most of them."""
    steps = [np.abs(np.diff(row[np.isfinite(row)])) / math.sqrt(2) for row in departures]
    every = np.concatenate(steps)
    return float(np.quantile(every, 0.68)) if len(every) >= MIN_RUNS else 0.0


def shared_departures(logs: Matrix) -> Vector:
    """(runs,): median over the cases ``logs`` (cases, runs) of a run's departures from the usual; NaN if missing.

    Usual is a low quantile of the runs so far: most runs may have a slow host.
    """
    vector = np.full(logs.shape[1], np.nan)
    for run in range(MIN_RUNS, logs.shape[1]):
        before = logs[:, max(0, run - WINDOW) : run]
        known = np.isfinite(logs[:, run]) & (np.isfinite(before).sum(axis=1) >= MIN_RUNS)
        if known.any():
            vector[run] = np.median(logs[known, run] - quantiles(before[known], USUAL[1]))
    return vector


def _by_times(history: History) -> list[Suspect]:
    """Judge the hosts by the cases' times; of a job's cases on most ranks these are one number per job."""
    names = list(dict.fromkeys(host for job in history.jobs for host in job.hosts))
    if len(names) < 2 or not len(history.keys):
        return []
    cases = [history.case(row) for row in range(len(history.keys))]
    rows = [row for row, case in enumerate(cases) if (case.message_bytes or 0) >= LONG] or list(range(len(cases)))
    ranks = np.array([cases[row].ranks for row in rows])[:, None]
    logs = history.logs[rows]
    largest = np.where(np.isfinite(logs), ranks, 0).max(axis=0)
    times = shared_departures(np.where(ranks == largest, logs, np.nan))
    there = np.array([[name in job.hosts for job in history.jobs] for name in names])
    return by_times(times, there, names)


def by_times(times: Vector, there: npt.NDArray[np.bool_], names: Sequence[str]) -> list[Suspect]:
    """Return the hosts that explain slow runs, and those of which one does.

    ``times`` (runs,): departures of the runs; ``there`` (hosts, runs): hosts that took part.
    """
    known = np.isfinite(times)
    slow = np.zeros(len(times), bool)
    runs = np.flatnonzero(known)
    for place, run in enumerate(runs[MIN_RUNS:], MIN_RUNS):
        low, high = np.quantile(times[runs[max(0, place - WINDOW) : place]], USUAL)
        slow[run] = times[run] - high > max(SLOW, DEVIATIONS * (high - low) / USUAL_DEVIATIONS)
    found = []
    for explanation in explanations(slow, known, there):
        hosts = sorted(names[host] for host in explanation.hosts)
        one = len(hosts) == 1
        name = hosts[0] if one else f"a host among these: {', '.join(hosts)}"
        kind: Kind = "host" if one else "hosts"
        episode = explanation.first, explanation.found, explanation.ended
        theirs = slow & there[explanation.hosts].any(axis=0)
        found.append(_suspect(name, kind, "times of the cases", episode, times, theirs))
    return found


def _episodes(
    slow: npt.NDArray[np.bool_], there: npt.NDArray[np.bool_], others_slow: Vector, others: Vector, suspects: int
) -> Iterator[tuple[int, int, int | None]]:
    """Yield first, naming and clearing run of each time in which a suspect was slow.

    Vectors are by run: whether it was slow and took part; number of others that were slow, and that took part.
    """
    streak: list[int] = []
    usual: list[int] = []
    named: tuple[int, int] | None = None
    seen = 0
    for run in np.flatnonzero(there).tolist():
        if named and run - seen > WINDOW:
            yield *named, seen + WINDOW
            named, streak = None, []
        seen = run
        usual = [] if slow[run] else [*usual, run]
        streak = [*streak, run] if slow[run] else streak if named else []
        if named and len(usual) == 2:
            yield *named, usual[0]
            named, streak = None, []
        elif not named and streak:
            begin = max(0, run + 1 - WINDOW)
            number = others[begin : run + 1].sum()
            chance = (others_slow[begin : run + 1].sum() + 1) / (number + 2)
            if number and len(streak) > 1 and chance ** len(streak) * suspects <= CHANCE:
                named = streak[0], run
    if named:
        yield *named, seen + WINDOW if len(there) - seen > WINDOW else None


def _suspect(
    name: str,
    kind: Kind,
    source: Source,
    place: tuple[int, int, int | None],
    departures: Vector,
    slow: npt.NDArray[np.bool_],
) -> Suspect:
    first, found, ended = place
    runs = np.flatnonzero(slow[first:ended]) + first
    return Suspect(name, kind, source, first, found, ended, float(np.exp(np.median(departures[runs]))), len(runs))


def _grouped(suspects: Sequence[Suspect], hosts: Sequence[str], groups: Mapping[str, str]) -> list[Suspect]:
    """Return the suspects, with a large share of one switch's hosts that are slow now as one.

    The switch of a host is that of ``groups``, else its name without the last number.
    """
    members: dict[str, set[str]] = {}
    for host in hosts:
        members.setdefault(groups.get(host) or re.sub(r"\d+$", "", host), set()).add(host)
    kept = list(suspects)
    for switch, all_hosts in members.items():
        slow = [suspect for suspect in suspects if suspect.ended is None and suspect.name in all_hosts]
        needed = max(GROUP, math.ceil(GROUP_SHARE * len(all_hosts)))
        if len(slow) < needed:
            continue
        names = ", ".join(sorted(suspect.name for suspect in slow))
        group = Suspect(
            f"{len(slow)} of {len(all_hosts)} of {switch} ({names})",
            "hosts",
            slow[0].source,
            min(suspect.first for suspect in slow),
            slow[needed - 1].found,
            None,
            float(np.median([suspect.ratio for suspect in slow])),
            max(suspect.runs for suspect in slow),
        )
        kept = [*(suspect for suspect in kept if suspect not in slow), group]
    return kept
