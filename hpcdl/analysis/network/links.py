"""Speed of the link between each pair of ranks, and slow hosts and links."""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from hpcdl.analysis.run.disturbance import disturbance
from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.differences import Matrix, Vector
from hpcdl.analysis.statistics.estimates import Interval, share_interval
from hpcdl.fabric.pairs import DEPARTS, rounds
from hpcdl.trace.recorder import Rows
from hpcdl.trace.run import Run

CONSPICUOUS: Final = 0.85
"""A host or link with less than this share of the others' speed is named."""

AS_FAST: Final = 0.95
"""A host with one link at this share of the others' speed or more is not named."""

HOSTS: Final = 3
"""Hosts without which none is named: of two that differ, either may be the odd one."""


@dataclass(frozen=True)
class HostTimes:
    """Times of one case that compares hosts."""

    record: Record
    hosts: Sequence[str]
    """Of each rank."""
    repeated: Matrix
    """(repetitions, ...): times; of several launches one median per launch."""
    disturbed: str | None = None

    @property
    def confirmed(self) -> bool:
        """True if slow hosts or pairs were measured more than once, in each launch."""
        return int(self.record.settings.get("confirm", 1)) > 1

    @property
    def seconds(self) -> Matrix:
        """Median of the times over repetitions."""
        return np.asarray(np.median(self.repeated, axis=0), np.float64)

    @property
    def names(self) -> list[str]:
        """The hosts, each once."""
        return list(dict.fromkeys(self.hosts))


@dataclass(frozen=True)
class Links(HostTimes):
    """One case's links.

    ``repeated``: (repetitions, p, p) times of an exchange, at the rank with the greater median; NaN between ranks
    that did not exchange.
    """

    passed: Sequence[tuple[int, int]] = ()
    """Pairs of ranks that were slow at first, but not when they were measured again."""

    @property
    def rates(self) -> Matrix:
        """Bytes per second in each direction, both at once; NaN where there is no time."""
        return float(self.record.message_bytes or 0) / self.seconds

    @cached_property
    def speed(self) -> Matrix:
        """(hosts, hosts): exchanges per second between ranks of two hosts, their median; NaN within a host."""
        return self._between_hosts(self.seconds)

    @cached_property
    def _speeds(self) -> list[Matrix]:
        """Speed in each repetition."""
        return [self._between_hosts(samples) for samples in self.repeated]

    def _between_hosts(self, seconds: Matrix) -> Matrix:
        matrix = np.full((len(self.names), len(self.names)), np.nan)
        ranks = [np.array([name == host for host in self.hosts]) for name in self.names]
        for i, j in itertools.permutations(range(len(ranks)), 2):
            times = seconds[np.ix_(ranks[i], ranks[j])]
            if np.isfinite(times).any():
                matrix[i, j] = 1 / np.nanmedian(times)
        return matrix

    def shares(self) -> list[tuple[int, Interval]]:
        """Hosts, and the speed of each as a share of the others', slowest first; none of fewer than three hosts.

        A host's speed is the median over its links, the others' the median over all links without it. The interval
        is over repetitions, 95 % for all hosts together.
        """
        if len(self.names) < HOSTS:
            return []
        samples = np.array([*map(_shares, self._speeds)])
        intervals = [
            (host, share_interval(share, samples[:, host], len(self.names)))
            for host, share in enumerate(_shares(self.speed).tolist())
            if np.isfinite(share)
        ]
        return sorted(intervals, key=lambda pair: pair[1].value)

    def slow_hosts(self) -> list[tuple[int, Interval]]:
        """Those of :meth:`shares` that are slow with every other host, and whose interval excludes 1."""
        speed = self.speed
        return [
            (host, share)
            for host, share in self.shares()
            if share.value < CONSPICUOUS
            and share.high < 1
            and np.nanmax(speed[host]) < AS_FAST * _others(speed, host)
        ]

    def host_slowness(self) -> dict[str, float]:
        """Return each host's slowness (its time / the usual host's); empty for fewer than three hosts."""
        if len(self.names) < HOSTS:
            return {}
        slowness = host_slowness(1 / self.speed)
        return {name: float(slow) for name, slow in zip(self.names, slowness, strict=True) if np.isfinite(slow)}

    def link_slowness(self) -> dict[str, float]:
        """Return each link's time / the median link's, between hosts; empty for fewer than three hosts."""
        if len(self.names) < HOSTS:
            return {}
        slowness = np.nanmedian(self.speed) / self.speed
        return {
            " - ".join(sorted((self.names[i], self.names[j]))): float(slowness[i, j])
            for i, j in itertools.combinations(range(len(slowness)), 2)
            if np.isfinite(slowness[i, j])
        }

    def extremes(self) -> list[tuple[int, int, float]]:
        """The fastest and the slowest pair, with their seconds; nothing if no ranks exchanged."""
        seconds = self.seconds
        if not np.isfinite(seconds).any():
            return []
        pairs = [divmod(int(place), len(seconds)) for place in (np.nanargmin(seconds), np.nanargmax(seconds))]
        return [(min(pair), max(pair), float(seconds[pair])) for pair in pairs]

    def link_shares(self) -> list[tuple[int, int, Interval]]:
        """Return pairs of hosts, and the speed of each link as a share of the median link's.

        The interval over repetitions is 95 % for all links together; none of fewer than three hosts.
        """
        if len(self.names) < HOSTS:
            return []
        shares, *repeated = (speed / np.nanmedian(speed) for speed in (self.speed, *self._speeds))
        pairs = list(itertools.combinations(range(len(self.names)), 2))
        return [
            (i, j, share_interval(float(shares[i, j]), [share[i, j] for share in repeated], len(pairs)))
            for i, j in pairs
            if np.isfinite(shares[i, j])
        ]

    def slow_links(self) -> list[tuple[int, int, float]]:
        """Return slow pairs of hosts of which neither host is slow, slowest first, and their shares.

        The interval of the share excludes 1.
        """
        slow = {host for host, _ in self.slow_hosts()}
        links = [
            (i, j, share.value)
            for i, j, share in self.link_shares()
            if not {i, j} & slow and share.value < CONSPICUOUS and share.high < 1
        ]
        return sorted(links, key=lambda pair: pair[2])

    def least_slowness(self) -> float:
        """Return the share of the usual speed below which each host and link would have been named; 0: no share.

        The noise of a host or link that is slower, and the usual speed, are taken to be the same.
        """
        speed, hosts = self.speed, self.shares()
        shares = [*(share for _, share in hosts), *(share for *_, share in self.link_shares())]
        fastest = [AS_FAST * share.value * _others(speed, host) / np.nanmax(speed[host]) for host, share in hosts]
        return float(min([least_share(shares, CONSPICUOUS), *fastest]))


def least_share(shares: Iterable[Interval], named: float) -> float:
    """Return the share below which each would exclude 1 in spite of its noise, at most ``named``; 0: no share."""
    limits = [share.value / share.high for share in shares]
    return float(min([named, *np.nan_to_num(limits)])) if limits else 0.0


def host_slowness(seconds: Matrix) -> Vector:
    """(hosts,): a low time of each host's links / a fast host's; ``seconds`` (hosts, hosts), NaN: unknown.

    Both are the lower quartile, but not the extreme: every link of a slow host is slow, but a link between two
    others is not, even if half of the hosts are slow.
    """
    ordered = np.sort(seconds, axis=1)  # NaN last
    last = np.maximum(np.isfinite(ordered).sum(axis=1) - 1, 0)
    lows = ordered[np.arange(len(ordered)), np.maximum(last // 4, np.minimum(last // 2, 1))]
    hosts = int(np.isfinite(lows).sum())
    return np.asarray(lows / np.sort(lows)[max((hosts - 1) // 4, min(hosts // 2, 2))], np.float64)


def _others(speed: Matrix, host: int) -> float:
    """Median speed of the links without those of ``host``; NaN where there are none."""
    speeds = np.delete(np.delete(speed, host, 0), host, 1)
    return float(np.nanmedian(speeds)) if np.isfinite(speeds).any() else np.nan


def _shares(speed: Matrix) -> Vector:
    """(hosts,): median speed of a host's links as a share of the others'; NaN where one is unknown."""
    medians = [float(np.nanmedian(row)) if np.isfinite(row).any() else np.nan for row in speed]
    return np.array([median / _others(speed, host) for host, median in enumerate(medians)])


def departures(record: Record) -> dict[int, tuple[float, float]]:
    """Return, of each host or pair that was measured again, its first departure and the one that counts.

    That is the geometric mean of its departures, if it departed each time; otherwise the least, at least 1.
    """
    found = {}
    for item, *values in json.loads(record.measured_again or "[]"):
        least, mean = min(values), float(np.exp(np.mean(np.log(values))))
        found[int(item)] = float(values[0]), max(1.0, least) if least <= DEPARTS else mean
    return found


def links(run: Run) -> list[Links]:
    """The links of every case of ``run`` in which more than one pair exchanged."""
    exchanges = []
    for index, case in enumerate(run.recorded):
        record = Record.of(case.fields)
        if record.kind == "pairwise" and record.pattern in {"all_pairs", "bisection"}:
            cause = None if record.network else disturbance(case.ranks).cause
            repeated, passed = _seconds(record, case.steps), []
            for pair, (first, settled) in departures(record).items():
                one, other = divmod(pair, record.ranks)
                repeated[:, [one, other], [other, one]] *= settled / first
                passed += [(one, other)] if settled < 1 / CONSPICUOUS <= first else []
            exchanges.append(Links(record, run.hosts_of(index), repeated, cause, passed))
    return exchanges


def _seconds(record: Record, steps: Rows) -> Matrix:
    """(repetitions, p, p) times of each pair; after the warm-up every round has equally many repetitions."""
    ranks, duration = record.ranks, steps["end"] - steps["begin"]
    others = ranks - 1 if record.pattern == "all_pairs" else 1
    if len(steps) < ranks * others:  # the table would fill the memory
        raise ValueError(f"{record.case}: {len(steps)} exchanges are too few for {ranks} ranks")
    table = rounds(ranks, str(record.pattern))
    repetitions = (np.count_nonzero(steps["rank"] == 0) - record.warmup_steps) // len(table)
    seconds = np.full((repetitions, ranks, ranks), np.nan)
    for rank in range(ranks):
        times = duration[steps["rank"] == rank][record.warmup_steps :] * 1e-9
        for partners, of_round in zip(table, times.reshape(len(table), -1), strict=True):
            if (other := partners[rank]) is not None:
                seconds[:, rank, other] = of_round
    # by its median, not in each repetition: a rank that loses its core delays one side of some repetitions
    medians = np.median(seconds, axis=0)
    return np.where(medians >= medians.T, seconds, seconds.transpose(0, 2, 1))
