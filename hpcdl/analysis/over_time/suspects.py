"""Hosts and links that are slow since some run, although each run may have other hosts.

They are found in the link measurements of an archive, else in its cases' times. Hypotheses for each suspect are
that it is slow, from some run on and by some factor, or that it is as usual. Departures are normal, or outliers.
Bayes' theorem weighs the hypotheses by all runs in which the suspect took part: one that is fast in a later run
is cleared. As for change points, each run is judged with the runs before it alone.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.over_time.noise import quantiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hpcdl.analysis.over_time.history import History, Job
    from hpcdl.analysis.statistics.estimates import Vector


Matrix = npt.NDArray[np.float64]
Cube = npt.NDArray[np.float64]

FACTORS: Final = np.log([1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 3.0, 5.0, 10.0])
"""Logarithms of the factors by which a suspect may be slow."""
PRIOR: Final = 0.5
"""Probability that some suspect becomes slow within :data:`WINDOW` runs."""
SURE: Final = 0.95
"""Probability from which a suspect is named."""
CLEARED: Final = 6.0
"""Evidence (nats) of its newest runs against a named suspect, from which it is slow no more."""
TIED: Final = 1.0
"""Evidence (nats) by which factors may differ of which the largest is meant."""
WINDOW: Final = 60
"""Runs that are judged together; a suspect that takes part in none of them is slow no more."""
OUTLIERS: Final = 0.15
"""Density of outliers per unit of the logarithm: 3 % of all values between +10 and +30 %."""
MIN_RUNS: Final = 5
"""Least number of values for an estimate."""
MIN_DEVIATION: Final = 0.005
"""Standard deviation of departures, at least."""
PRIOR_SPREAD: Final = 0.03
"""Standard deviation of the level, as a logarithm, that is expected of hosts of which few are known."""
USUAL_SPREAD: Final = 4.0
"""Standard deviations of the level that lasting differences between suspects reach: chosen by simulation."""


@dataclass(frozen=True)
class Culprit:
    """Suspect that was named."""

    suspect: int
    factor: int
    """Index of the most likely of :data:`FACTORS` when it was named."""
    first: int
    """First slow run."""
    found: int
    """Run with which it was named."""
    ended: int | None
    """First of the runs that cleared it; None while it is slow."""
    probability: float
    """Probability that it is slow, when it was named."""
    ratio: float = math.nan
    """Median of its slow departures, as a factor."""
    runs: int = 0
    """Runs in which it took part and was slow."""


class Scatter(NamedTuple):
    """Scatter of departures, as logarithms."""

    center: float
    """Level of the usual suspect."""
    between: float
    """Standard deviation of the levels of suspects, which last; 0 if they do not differ."""
    within: Vector
    """(suspects,): standard deviation of each suspect's departures about its level."""


def shared_departures(logs: Matrix) -> Vector:
    """(runs,): median over the cases ``logs`` (cases, runs) of a run's departures from the usual; NaN if missing.

    Usual is the 40 % quantile of the runs so far: runs with a slow host may be many.
    """
    vector = np.full(logs.shape[1], np.nan)
    for run in range(MIN_RUNS, logs.shape[1]):
        before = logs[:, max(0, run - WINDOW) : run]
        known = np.isfinite(logs[:, run]) & (np.isfinite(before).sum(axis=1) >= MIN_RUNS)
        if known.any():
            vector[run] = np.median(logs[known, run] - quantiles(before[known], 0.4))
    return vector


def scatter(departures: Matrix, *, lasting: bool = True) -> Scatter | None:
    """Return the scatter of ``departures`` (suspects, runs), NaN if missing; None for too few.

    ``lasting``: levels of suspects may differ. The scatter about a level is then that of successive departures,
    and that of the levels is from their 40 and 70 % quantiles: the time of a link is that of its slower host, so
    that fast hosts look alike, and slow hosts are fewer than 30 %. :data:`PRIOR_SPREAD` counts as
    :data:`MIN_RUNS` levels.
    """
    rows = [row[np.isfinite(row)] for row in departures]
    known = np.concatenate(rows) if rows else np.empty(0)
    if len(known) < MIN_RUNS:
        return None
    low, high = np.quantile(known, [0.1, 0.4])
    steps = [np.abs(np.diff(row)) / math.sqrt(2) for row in rows]
    every = np.concatenate(steps)
    if not lasting or len(every) < MIN_RUNS:
        within = np.full(len(rows), max(float(high - low) / 1.028, MIN_DEVIATION))
        return Scatter(float(high) + 0.253 * float(high - low) / 1.028, 0.0, within)
    usual = max(float(np.quantile(every, 0.9)) / 1.645, MIN_DEVIATION)
    within = np.array(
        [max(usual, 1.4826 * float(np.median(step))) if len(step) >= MIN_RUNS else usual for step in steps]
    )
    levels = np.array([np.median(row) for row in rows if len(row)])
    middle, upper = np.quantile(levels, [0.4, 0.7])
    error = usual**2 * np.pi / 2 / float(np.median([len(row) for row in rows if len(row)]))
    measured = max((float(upper - middle) / 0.777) ** 2 - error, 0.0)
    between = math.sqrt((len(levels) * measured + MIN_RUNS * PRIOR_SPREAD**2) / (len(levels) + MIN_RUNS))
    return Scatter(float(middle), between, within)


def evidence(departures: Matrix, outliers: float = OUTLIERS, *, lasting: bool = True) -> Cube:
    """(factors, suspects, runs): logarithm of the likelihood of "slow by this factor" by that of "as usual".

    ``departures`` (suspects, runs): logarithms of time by the usual time, NaN where a suspect did not take part.
    Lasting differences between suspects are usual: a suspect is compared with its own runs before, or while
    there are few with the slowest of a usual spread, unless ``lasting`` is false. ``outliers``: density of
    outliers per unit of the logarithm.
    """
    scattered = scatter(departures, lasting=lasting)
    if scattered is None:
        return np.zeros((len(FACTORS), *departures.shape))
    limit = USUAL_SPREAD * scattered.between
    usual = np.full(departures.shape, scattered.center + limit)
    for suspect, row in enumerate(departures if limit else ()):
        runs = np.flatnonzero(np.isfinite(row))
        own = math.inf
        for place, run in enumerate(runs[MIN_RUNS:], MIN_RUNS):
            own = min(own, float(np.quantile(row[runs[:place]], 0.4)))
            usual[suspect, run] = scattered.center + min(max(own - scattered.center, -limit), limit)
    within = np.hypot(scattered.within, scattered.between)[:, None]

    def density(values: Cube) -> Cube:
        normal = np.exp(-((values / within) ** 2) / 2) / (within * np.sqrt(2 * np.pi))
        return np.asarray(normal + outliers, np.float64)

    values = departures - usual
    # a value beyond the factor is as good a sign as one at it
    beyond = np.minimum(values - FACTORS[:, None, None], 0)
    return np.nan_to_num(np.log(density(beyond) / density(values)))


def culprits(ratios: Cube, departures: Matrix, *, shared: bool = False) -> list[Culprit]:
    """Return the suspects that were named, in that order; ``ratios`` is :func:`evidence` of ``departures``.

    ``shared``: the departures of a run are those of all its suspects, so that a suspect is named only if it would
    be without the runs of the most likely other one, and of any second one, and if most runs of neither are usual.
    """
    suspects, runs = departures.shape
    begin = [max(0, now + 1 - WINDOW) for now in range(runs)]
    weights = [
        [_log_weight(ratios[:, suspect, begin[now] : now + 1]) for now in range(runs)]
        for suspect in range(suspects if shared else 0)
    ]
    there, slow = np.isfinite(departures), ratios[0].max(axis=0) > 0

    def alone(culprit: Culprit) -> bool:
        """Return True if no other suspects explain the slow runs."""
        rest = [other for other in range(suspects) if other != culprit.suspect and shared]
        if not rest:
            return True
        likely = there[max(rest, key=lambda other: weights[other][culprit.found])]
        here, since = slice(begin[culprit.found], culprit.found + 1), slice(culprit.first, culprit.found + 1)
        own = ratios[:, culprit.suspect, here]
        if any(probability(own * ~(there[other] | likely)[here], suspects) < SURE for other in rest):
            return False
        neither = slow[since][~(there[culprit.suspect] | likely)[since]]
        return int(neither.sum()) <= len(neither) / 3

    episodes = [culprit for suspect in range(suspects) for culprit in _episodes(suspect, ratios, alone)]
    return sorted((_sized(culprit, ratios, departures) for culprit in episodes), key=lambda one: one.found)


def _episodes(suspect: int, ratios: Cube, accept: Callable[[Culprit], bool]) -> Iterator[Culprit]:
    """Yield each time in which a suspect was slow and accepted."""
    own, suspects = ratios[:, suspect], ratios.shape[1]
    named: Culprit | None = None
    begin = 0
    seen = 0
    for now in range(own.shape[1]):
        if named is not None and now - seen >= WINDOW:
            yield replace(named, ended=now)
            named, begin = None, now
        if not own[:, now].any():
            continue
        seen = now
        if named is None:
            begin = max(begin, now + 1 - WINDOW)
            sure = probability(own[:, begin : now + 1], suspects)
            if sure >= SURE and accept(candidate := _culprit(own, suspect, begin, now, sure)):
                named = candidate
        elif (ended := _end(own[named.factor, : now + 1], named.found)) is not None:
            yield replace(named, ended=ended)
            named, begin = None, ended
    if named is not None:
        yield named


def probability(ratios: Matrix, suspects: int) -> float:
    """Return the probability that a suspect is slow now, by its evidence ``ratios`` (factors, runs)."""
    odds = _log_weight(ratios) + math.log(PRIOR / (1 - PRIOR) / suspects)
    return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0


def _log_weight(ratios: Matrix) -> float:
    """Return the logarithm of the mean likelihood ratio of "slow in the last 1, 2, ... runs, by some factor"."""
    since = np.cumsum(ratios[:, ::-1], axis=1)
    top = float(since.max())
    return top + math.log(float(np.exp(since - top).mean()))


def _culprit(ratios: Matrix, suspect: int, begin: int, now: int, probability: float) -> Culprit:
    """Return the suspect with evidence ``ratios`` (factors, runs), named by the run ``now``."""
    since = np.cumsum(ratios[:, begin : now + 1][:, ::-1], axis=1)[:, ::-1]
    likely = since.max(axis=1)
    factor = int(np.flatnonzero(likely >= likely.max() - TIED)[-1])
    place = int(np.argmax(since[factor]))
    first = begin + place + int(np.argmax(ratios[factor, begin + place : now + 1] > 0))
    return Culprit(suspect, factor, first, now, None, probability)


def _end(ratios: Vector, number: int) -> int | None:
    """Return the first of the newest runs that clear a suspect named by the run ``number``; else None."""
    against = -np.cumsum(ratios[: number - len(ratios) : -1])[::-1]  # of the newest 1, 2, ... runs
    if not len(against) or against.max() < CLEARED:
        return None
    return number + 1 + int(np.argmax(against))


def _sized(culprit: Culprit, ratios: Cube, departures: Matrix) -> Culprit:
    slow = (
        np.flatnonzero(ratios[culprit.factor, culprit.suspect, culprit.first : culprit.ended] > 0) + culprit.first
    )
    return replace(culprit, ratio=float(np.exp(np.median(departures[culprit.suspect, slow]))), runs=len(slow))


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
