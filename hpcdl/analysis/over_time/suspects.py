"""Hosts and links that are slow since some run, although each run may have other hosts.

Nodes that compute slowly are found in node cases; slow links and their hosts in link measurements of the archive,
else in its cases' times (:mod:`hpcdl.analysis.over_time.explanations`). By nodes and links, a suspect is slow in
a run if its time departs from the usual one beyond noise. It is named if it is slow in three or more of its runs
in a row, so many that chance does not explain it in all runs of the archive, by the share of slow runs of others.
Two usual runs in a row clear a suspect.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from hpcdl.analysis.over_time.change_points import AFTER
from hpcdl.analysis.over_time.explanations import WINDOW, explanations
from hpcdl.analysis.over_time.series import History, median_slowness
from hpcdl.analysis.run.record import group_by_key
from hpcdl.analysis.statistics.differences import Flags, Matrix, Vector
from hpcdl.analysis.statistics.estimates import quantiles

Kind = Literal["node", "host", "link", "hosts", "neighbours"]
"""A node computes slowly, a host has slow links. Neighbours are hosts whose names follow each other, of a switch
that is not known."""
Source = Literal["times of exchanges", "times of cases", "times of its own work"]
Episode = tuple[int, int, int | None]
"""First, naming and clearing run of a time in which a host or link was slow."""

SLOW: Final = 0.05
"""Least departure of a slow run, as a logarithm."""
DEVIATIONS: Final = 4.0
"""Least departure of a slow run in standard deviations of the noise."""
CHANCE: Final = 0.05
"""Probability, over all suspects and runs of the archive, of as many slow runs in a row by chance."""
MIN_RUNS: Final = 5
"""Least number of values for an estimate."""
USUAL: Final = (0.05, 0.2)
"""Quantiles of times of runs that are usual; noise has 0.803 standard deviations between them."""
GROUP: Final = 3
"""Slow hosts of one switch, at least, that are one finding, if they are 40 % of its hosts or neighbours."""


@dataclass(frozen=True)
class Suspect:
    """Host or link, or hosts of one switch, that are slow."""

    name: str
    """Several hosts as Slurm lists them: n[01-04]."""
    kind: Kind
    source: Source
    first: int
    found: int
    """Run with which it was named."""
    ended: int | None
    """First of the runs that cleared it; None while it is slow."""
    ratio: float
    """Its time / the usual one, the median of its slow runs."""
    runs: int
    """Runs in which it took part and was slow."""


def suspects(history: History, groups: Mapping[str, str]) -> list[Suspect]:
    """Return the slow hosts, and the slow links between other hosts, in the order in which they were named.

    ``groups``: switch of hosts.
    """
    nodes = by_departures(_by_host(history, "node"), "node")
    hosts = _by_host(history, "host")
    if not hosts:
        names = [host for job in history.jobs for host in job.hosts]
        return [*nodes, *grouped(_by_times(history, groups), names, groups)]
    named = by_departures(hosts, "host")
    slow = {suspect.name for suspect in named}
    links = _by_host(history, "link")
    links = {pair: values for pair, values in links.items() if not slow & set(pair.split(" - "))}
    every = [*nodes, *grouped(named, list(hosts), groups), *by_departures(links, "link")]
    return sorted(every, key=lambda suspect: suspect.found)


def _parts(host: str) -> tuple[str, str, str]:
    """Return the name of a host before its last number, the number, and the rest with the domain."""
    before, number, rest = re.split(r"(\d*)(?=[^\d.]*(?:\.|$))", host, maxsplit=1)
    return before, number, rest


def host_list(hosts: Iterable[str]) -> str:
    """Return names of hosts as Slurm lists them: n[01-04,07],login.

    Slurm pads the numbers of a range to the width of its first one, and allows no text behind brackets.
    """
    names, ranges = list[str](), dict[str, list[tuple[str, str]]]()
    for before, number, rest in sorted(map(_parts, {*hosts}), key=lambda parts: (len(parts[1]), parts[1], parts)):
        if rest or not number:
            names.append(f"{before}{number}{rest}")
            continue
        of_prefix = ranges.setdefault(before, [])
        first, last = of_prefix.pop() if of_prefix else (number, number)
        follows = number == f"{int(last) + 1:0{len(first)}}"
        of_prefix += [(first, number)] if follows or first == number else [(first, last), (number, number)]
    for before, of_prefix in ranges.items():
        text = ",".join("-".join(dict.fromkeys(ends)) for ends in of_prefix)
        names.append(f"{before}{text}" if text.isdecimal() else f"{before}[{text}]")
    return ",".join(names)


def switches(hosts: Iterable[str], groups: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the hosts of each switch, by their numbers; without ``groups`` they differ in their last number."""
    ordered = sorted({*hosts}, key=lambda host: (int(_parts(host)[1] or 0), host))
    return group_by_key((groups.get(host) or "".join(_parts(host)[::2]), host) for host in ordered)


def _named(hosts: Sequence[str], groups: Mapping[str, str]) -> tuple[Kind, str]:
    """Return kind and name of a host, or of several of one switch."""
    if len(hosts) == 1:
        return "host", hosts[0]
    switch = groups.get(hosts[0])
    return ("hosts", f"{host_list(hosts)} of {switch}") if switch else ("neighbours", host_list(hosts))


def _by_host(history: History, kind: str) -> dict[str, Vector]:
    """Return by name (jobs,) logarithms of the slowness, the median over cases and launches; NaN if missing."""
    departures: dict[str, Vector] = {}
    for number, job in enumerate(history.jobs):
        for name, slowness in median_slowness(job.not_failed, kind).items():
            departures.setdefault(name, np.full(len(history.jobs), np.nan))[number] = np.log(slowness)
    return departures


def by_departures(departures: Mapping[str, Vector], kind: Kind) -> list[Suspect]:
    """Return the suspects that were slow by ``departures``: by name (runs,), NaN where it did not take part."""
    source: Source = "times of its own work" if kind == "node" else "times of exchanges"
    table = np.array(list(departures.values()))
    if np.isfinite(table).sum() < MIN_RUNS:
        return []
    slow, there = _slow(table), np.isfinite(table)
    counts, every = slow.sum(axis=0), there.sum(axis=0)
    named = [
        _suspect(name, kind, source, episode, table[row], slow[row])
        for row, name in enumerate(departures)
        for episode in _episodes(slow[row], there[row], counts, every)
    ]
    return sorted(named, key=lambda suspect: suspect.found)


def _slow(departures: Matrix) -> Flags:
    """(suspects, runs): True where a suspect departs beyond noise from its usual departure, which may be lasting.

    Usual is that of the suspect's own runs before, or while there are few that of the slowest of a usual spread.
    The spread is from the 40 and 70 % quantiles of the levels, because slow hosts are fewer than 30 %.
    """
    slow = np.zeros(departures.shape, bool)
    levels = np.full(len(departures), math.inf)
    steps = np.full(departures.shape, math.nan)  # of successive departures of a suspect
    for row, values in enumerate(departures):
        runs = np.flatnonzero(np.isfinite(values))
        steps[row, runs[1:]] = np.abs(np.diff(values[runs])) / math.sqrt(2)
    for run in range(departures.shape[1]):
        before = departures[:, max(0, run - WINDOW) : run]
        count = np.isfinite(before).sum(axis=1)
        center, variance = 0.0, 0.03**2  # of the level, as a logarithm, of hosts of which few are known
        if count.any():
            center, upper = np.quantile(quantiles(before[count > 0]), [0.4, 0.7])
            measured, number = float(upper - center) / 0.777, int((count > 0).sum())
            variance = (number * measured**2 + MIN_RUNS * variance) / (number + MIN_RUNS)
        limit = 3 * math.sqrt(variance)  # that lasting differences reach; chosen by simulation
        enough = count >= MIN_RUNS
        levels[enough] = np.minimum(levels[enough], quantiles(before[enough], 0.4))
        every = steps[:, max(0, run - WINDOW) : run]
        every = every[np.isfinite(every)]
        noise = float(np.quantile(every, 0.68)) if len(every) >= MIN_RUNS else 0.0
        usual = center + np.clip(levels - center, -limit, limit)
        slow[:, run] = departures[:, run] - usual > max(SLOW, DEVIATIONS * noise)
    return slow


def shared_departures(logs: Matrix) -> tuple[Vector, Flags]:
    """(runs,): median over the cases ``logs`` (cases, runs) of a run's departures from the usual, and slow runs.

    A departure is NaN if missing. Usual is a low quantile of the runs so far, since most runs may have a slow
    host, without slow ones, which may be nearly all for long; these count if there are hardly any others.
    """
    vector, slow = np.full(logs.shape[1], np.nan), np.zeros(logs.shape[1], bool)
    for run in range(MIN_RUNS, logs.shape[1]):
        recent = np.arange(max(0, run - 2 * WINDOW), run)
        usual = recent[~slow[recent]]
        usual = (usual if len(usual) >= MIN_RUNS else recent)[-WINDOW:]
        before = logs[:, usual]
        measured = np.isfinite(logs[:, run]) & (np.isfinite(before).sum(axis=1) >= MIN_RUNS)
        if not measured.any():
            continue
        vector[run] = np.median(logs[measured, run] - quantiles(before[measured], USUAL[1]))
        times = vector[usual][np.isfinite(vector[usual])]
        if len(times) >= MIN_RUNS:
            low, high = np.quantile(times, USUAL)
            slow[run] = vector[run] - high > max(SLOW, DEVIATIONS * (high - low) / 0.803)
    return vector, slow


def _by_times(history: History, groups: Mapping[str, str]) -> list[Suspect]:
    """Judge the hosts by the cases' times; of a job's cases on most ranks these are one number per job."""
    names = list(dict.fromkeys(host for job in history.jobs for host in job.hosts))
    if len(names) < 2 or not len(history.keys):
        return []
    cases = [history.case(row) for row in range(len(history.keys))]
    long = np.array([(case.message_bytes or 0) >= 1 << 16 for case in cases])  # their time is that of the links
    rows = np.flatnonzero(long | ~long.any())
    ranks = np.array([cases[row].ranks for row in rows])[:, None]
    logs = history.logs[rows]
    largest = np.where(np.isfinite(logs), ranks, 0).max(axis=0)
    there = np.array([[name in job.hosts for job in history.jobs] for name in names])
    return by_times(np.where(ranks == largest, logs, np.nan), there, names, groups)


def by_times(logs: Matrix, there: Flags, names: Sequence[str], groups: Mapping[str, str]) -> list[Suspect]:
    """Return the hosts and the neighbours that explain slow runs, and the hosts of which one does.

    ``logs`` (cases, runs): logarithms of times; ``there`` (hosts, runs): hosts that took part.
    """
    times, slow = shared_departures(logs)
    lines = [[names.index(host) for host in switch] for switch in switches(names, groups).values()]
    named = []
    for explanation in explanations(slow, np.isfinite(times), there, lines):
        hosts = [names[host] for host in explanation.hosts]
        kind, name = _named(hosts, groups)
        if explanation.one_of:
            kind, name = "hosts", f"one of {host_list(hosts)}"
        episode = explanation.first, explanation.found, explanation.ended
        theirs = slow & there[explanation.hosts].any(axis=0)
        named.append(_suspect(name, kind, "times of cases", episode, times, theirs))
    return named


def _episodes(slow: Flags, there: Flags, all_slow: Vector, every: Vector) -> Iterator[Episode]:
    """Yield each time in which a suspect was slow.

    Vectors are by run: whether it was slow and took part; number of all that were slow, and that took part.
    """
    others_slow, others, tests = all_slow - slow, every - there, every.cumsum()
    streak, usual, seen = list[int](), list[int](), 0
    named: tuple[int, int] | None = None
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
            if number and len(streak) >= AFTER and chance ** len(streak) * tests[run] <= CHANCE:
                named = streak[0], run
    if named:
        yield *named, seen + WINDOW if len(there) - seen > WINDOW else None


def _suspect(name: str, kind: Kind, source: Source, episode: Episode, departures: Vector, slow: Flags) -> Suspect:
    first, _, ended = episode
    runs = np.flatnonzero(slow[first:ended]) + first
    return Suspect(name, kind, source, *episode, float(np.exp(np.median(departures[runs]))), len(runs))


def grouped(suspects: Sequence[Suspect], hosts: Sequence[str], groups: Mapping[str, str]) -> list[Suspect]:
    """Return the suspects; hosts of one switch that are slow now, a large share or neighbours, are one suspect."""
    slow = {suspect.name: suspect for suspect in suspects if suspect.ended is None and suspect.kind == "host"}
    kept = list(suspects)
    for switch, members in switches(hosts, groups).items():
        bad = [host for host in members if host in slow]
        is_share = len(bad) >= 0.4 * len(members)
        runs = [[*part] for is_bad, part in itertools.groupby(members, slow.__contains__) if is_bad]
        for part in (part for part in ([bad] if is_share else runs) if len(part) >= GROUP):
            kind, name = _named(part, groups)
            if is_share:
                kind, name = "hosts", f"{len(bad)} of {len(members)} of {switch} ({host_list(bad)})"
            theirs = sorted((slow[host] for host in part), key=lambda suspect: suspect.found)
            first, found = min(suspect.first for suspect in theirs), theirs[GROUP - 1].found
            ratio, times = float(np.median([host.ratio for host in theirs])), max(host.runs for host in theirs)
            group = Suspect(name, kind, theirs[0].source, first, found, None, ratio, times)
            kept = [*(suspect for suspect in kept if suspect not in theirs), group]
    return kept
