"""Speed of each host's own work, and slow hosts: "the node, not its link"."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np

from hpcdl.analysis.network.links import HOSTS, HostTimes, Links, departures, least_share
from hpcdl.analysis.run.disturbance import disturbance
from hpcdl.analysis.run.record import Key, Record, group_by_key
from hpcdl.analysis.statistics.differences import Matrix, Vector
from hpcdl.analysis.statistics.estimates import Interval, share_interval
from hpcdl.trace.run import Run


@dataclass(frozen=True)
class Nodes(HostTimes):
    """One node case; ``repeated``: (repetitions, hosts) times of the work on the host's slowest rank."""

    passed: Sequence[str] = ()
    """Hosts that were slow at first, but not when they were measured again."""

    def shares(self) -> list[Interval]:
        """(hosts,): speed of each host / the median of the others; none of fewer than three hosts.

        The intervals are over repetitions or launches, 95 % for all hosts together.
        """
        if len(self.names) < HOSTS:
            return []
        samples = self.samples
        return [
            share_interval(share, samples[:, host], len(self.names))
            for host, share in enumerate(_shares(self.seconds).tolist())
        ]

    @property
    def samples(self) -> Matrix:
        """(repetitions, hosts): speed of each host / the median of the others, in each repetition."""
        return np.array([_shares(times) for times in self.repeated])

    def slowness(self) -> dict[str, float]:
        """Return each host's time / the usual host's, a low quantile; empty for fewer than three hosts."""
        if len(self.names) < HOSTS:
            return {}
        ordered = np.sort(self.seconds)
        usual = ordered[max((len(ordered) - 1) // 4, min(len(ordered) // 2, 2) - 1)]
        return {name: float(time / usual) for name, time in zip(self.names, self.seconds, strict=True)}


SLOW: Final = 0.90
"""Share of the others' speed over all works below which a host is slow; chosen on emulated hosts."""
SLOW_IN_ONE: Final = 0.75
"""Likewise in one work alone, which varies more: hosts of one machine share its memory."""


def slow_hosts(cases: Sequence[Nodes]) -> dict[str, tuple[Interval, list[Nodes]]]:
    """Return the slow hosts of cases on the same hosts, slowest first, with the cases in which each is slow.

    A host is slow if its speed, the geometric mean over the cases, is below :data:`SLOW` and the interval over all
    repetitions excludes 1; else if it is below :data:`SLOW_IN_ONE` in a case (its memory may be slow, its
    arithmetic not).
    """
    slow: dict[str, tuple[Interval, list[Nodes]]] = {}
    for name, (pooled, of_host) in _pooled(cases).items():
        low = [(share, nodes) for share, nodes in of_host if share.value < SLOW]
        alone = [(share, nodes) for share, nodes in low if share.value < SLOW_IN_ONE and share.high < 1]
        if pooled.value < SLOW and pooled.high < 1 and low:
            slow[name] = pooled, [nodes for _, nodes in low]
        elif alone:
            slow[name] = min(share for share, _ in alone), [nodes for _, nodes in alone]
    return dict(sorted(slow.items(), key=lambda item: item[1][0].value))


def _pooled(cases: Sequence[Nodes]) -> dict[str, tuple[Interval, list[tuple[Interval, Nodes]]]]:
    """Return by host its speed over all cases, and in each case."""
    shares = (
        (name, (share, nodes)) for nodes in cases for name, share in zip(nodes.names, nodes.shares(), strict=False)
    )
    pooled = {}
    for name, of_host in group_by_key(shares).items():
        mean = math.exp(float(np.mean([math.log(share.value) for share, _ in of_host])))
        samples = np.concatenate([nodes.samples[:, nodes.names.index(name)] for _, nodes in of_host])
        pooled[name] = share_interval(mean, samples, max(len(nodes.names) for _, nodes in of_host)), of_host
    return pooled


def least_slowness(cases: Sequence[Nodes]) -> float:
    """Return the share of the others' speed below which each host would have been named; 0: no share."""
    return least_share((share for share, _ in _pooled(cases).values()), SLOW)


def _shares(seconds: Vector) -> Vector:
    return np.array([np.median(np.delete(seconds, host)) / time for host, time in enumerate(seconds)])


def nodes(run: Run) -> list[Nodes]:
    """Return the node cases of ``run``, failed ones left out."""
    measured = []
    for index, case in enumerate(run.recorded):
        record = Record.of(case.fields)
        if record.kind == "node" and not record.error and len(case.steps):
            hosts = run.hosts_of(index) or [str(rank) for rank in range(record.ranks)]
            names, passed = list(dict.fromkeys(hosts)), []
            durations = case.steps["end"] - case.steps["begin"]
            by_rank = [durations[case.steps["rank"] == rank][record.warmup_steps :] for rank in range(len(hosts))]
            of_hosts = ([by_rank[rank] for rank, host in enumerate(hosts) if host == name] for name in names)
            seconds = np.stack([np.max(of_host, axis=0) for of_host in of_hosts], axis=1) * 1e-9
            for rank, (first, settled) in departures(record).items():
                seconds[:, names.index(hosts[rank])] *= settled / first
                passed += [hosts[rank]] if settled < 1 / SLOW <= first else []
            measured.append(Nodes(record, hosts, seconds, disturbance(case.ranks).cause, tuple(passed)))
    return measured


Compared = TypeVar("Compared", Links, Nodes)


def over_launches(launches: Sequence[Compared]) -> list[Compared]:
    """Combine the launches of each case on the same hosts: the undisturbed ones; all if all are disturbed."""
    cases = group_by_key((_identity(launch), launch) for launch in launches)
    combined = []
    for of_case in cases.values():
        counted = undisturbed(of_case)
        medians = np.stack([launch.seconds for launch in counted])
        combined.append(counted[0] if len(counted) == 1 else replace(counted[0], repeated=medians))
    return combined


def undisturbed(cases: Sequence[Compared]) -> Sequence[Compared]:
    """Return the undisturbed cases or launches; all if all are disturbed."""
    return [case for case in cases if not case.disturbed] or cases


def _identity(times: HostTimes) -> Key:
    record = times.record
    return (record.case, record.aggregation, record.pattern, record.message_bytes, *times.hosts)
