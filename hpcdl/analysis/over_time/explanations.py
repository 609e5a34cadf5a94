"""Slow hosts by the times of runs: those without which the slow runs have no good explanation.

A run takes the time of its slowest host: a slow run accuses all of its hosts, a usual one clears them. Sets of
slow hosts are compared by description length (Rissanen, Automatica 14, 1978), in nats. A host costs the logarithm
of the number of hosts, and of the square of the number of its accusations, so that noise names few hosts in an
archive of any length. Runs that no slow host explains cost the surprise of which of them are slow. Their rate may
change once: if all runs are slow from some night on, no host is the cause.

A host is named if the shortest description without it is longer by :data:`EVIDENCE`. If that holds for several
hosts together only, one of them is slow.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.statistics.estimates import Vector

Flags = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]

WINDOW: Final = 60
"""Runs that are explained together; a host that takes part in none of them is slow no more."""
EVIDENCE: Final = 3.0
"""Least advantage of a named host, in nats (chosen by simulation: tests/analysis/history_figures.py)."""
SURE: Final = 2
"""Hosts that a search finds; a description with more of them may not be the shortest: one nat more for each."""
CHANGE: Final = 1.0
"""Cost of a change of the rate, in nats."""
ACCUSATIONS: Final = 3
"""Slow runs of a named host, at least."""
TOGETHER: Final = 4
"""Hosts of which one is slow, at most; more are not worth a name."""
NEVER: Final = 1 << 62

_LOG_FACTORIALS: Final = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, WINDOW + 2)))])


@dataclass(frozen=True)
class Explanation:
    """A slow host, or several of which one is."""

    hosts: Sequence[int]
    first: int
    found: int
    """Run with which it was named."""
    ended: int | None
    """First of the runs that cleared it; None while it is slow."""


def explanations(slow: Flags, known: Flags, there: Flags) -> list[Explanation]:
    """Return the slow hosts in the order in which they were named; no later run alters that.

    ``slow`` and ``known`` (runs,); ``there`` (hosts, runs): hosts that took part.
    """
    hosts = len(there)
    first, last = np.full(hosts, NEVER), np.zeros(hosts, np.int64)
    accused, usual = np.zeros(hosts), np.full((hosts, 2), NEVER)
    named: dict[int, int] = {}
    ended: list[Explanation] = []
    groups: list[list[int]] = []
    run = 0
    for run in np.flatnonzero(known).tolist():
        here = there[:, run]
        gone = run - last > WINDOW
        last[here] = run
        # a named host is cleared by two usual runs in a row
        usual[here] = np.column_stack([usual[here, 1], np.full(here.sum(), NEVER if slow[run] else run)])
        cleared = (first < NEVER) & (gone | (usual[:, 1] < NEVER))
        for host in np.flatnonzero(cleared).tolist():
            if host in named and not gone[host] and usual[host, 0] == NEVER:
                cleared[host] = False
            elif host in named:
                end = run if gone[host] else int(usual[host, 0])
                ended.append(Explanation([host], int(first[host]), named.pop(host), end))
        first[cleared] = NEVER
        if slow[run]:
            accused += here & (first == NEVER)
            first[here] = np.minimum(first[here], run)
        runs = np.flatnonzero(known[: run + 1])[-WINDOW:]
        explains = there[:, runs] & slow[runs] & (runs >= first[:, None])
        costs = math.log(hosts) + 2 * np.log(np.maximum(accused, 1))
        groups = list(_needed(explains, slow[runs], costs, list(named)))
        named |= {group[0]: run for group in groups if len(group) == 1}
    ended += [Explanation([host], int(first[host]), found, None) for host, found in named.items()]
    ended += [Explanation(group, int(first[group].min()), run, None) for group in groups if len(group) > 1]
    return sorted(ended, key=lambda explanation: explanation.found)


def _needed(explains: Flags, slow: Flags, costs: Vector, named: list[int]) -> Iterator[list[int]]:
    """Yield hosts, and groups with one slow host, without which any description of the slow runs is longer.

    ``explains`` (hosts, runs): slow runs that each host explains; ``costs`` (hosts,); ``named``: known slow hosts.
    """
    accused = explains.sum(axis=1) >= ACCUSATIONS
    accused[named] = False
    if not accused.any():
        return
    shortest, chosen = _described(explains, slow, costs, named)
    evidence = EVIDENCE + max(0, len(chosen) - len(named) - SURE)
    for host in [host for host in chosen if accused[host]]:
        rest = [other for other in chosen if other != host]
        replaced = _lengths(explains, slow, costs, rest) - shortest
        group = [host, *(int(other) for other in np.flatnonzero(replaced < evidence) if other not in chosen)]
        for hosts in ([host], group):
            others = explains.copy()
            others[hosts] = False
            if len(hosts) <= TOGETHER and _described(others, slow, costs, named)[0] - shortest >= evidence:
                yield hosts
                break


def _described(explains: Flags, slow: Flags, costs: Vector, named: list[int]) -> tuple[float, list[int]]:
    """Return length and hosts of a short description: the best host in turn, less the superfluous ones."""
    chosen = list(named)
    shortest = _length(explains, slow, costs, chosen)
    while True:
        lengths = _lengths(explains, slow, costs, chosen)
        best = int(lengths.argmin())
        if lengths[best] >= shortest:
            return shortest, chosen
        shortest = float(lengths[best])
        chosen.append(best)
        for host in chosen[len(named) : -1]:
            fewer = [other for other in chosen if other != host]
            length = _length(explains, slow, costs, fewer)
            if length < shortest:
                shortest, chosen = length, fewer


def _length(explains: Flags, slow: Flags, costs: Vector, chosen: list[int]) -> float:
    free = np.logical_not(explains[chosen].any(axis=0, keepdims=True))
    return float(_surprise(free, slow)[0]) + float(costs[chosen].sum())


def _lengths(explains: Flags, slow: Flags, costs: Vector, chosen: list[int]) -> Vector:
    """(hosts,): length of the description by ``chosen`` and each host."""
    free = ~(explains[chosen].any(axis=0) | explains)
    return np.asarray(_surprise(free, slow) + costs[chosen].sum() + costs, np.float64)


def _surprise(free: Flags, slow: Flags) -> Vector:
    """(...,): length of the list of the slow runs among those that are ``free`` (..., runs)."""
    number, bad = (np.cumsum(flags, axis=-1, dtype=np.int64) for flags in (free, free & slow))
    rest: tuple[Counts, Counts] = (number[..., -1:] - number, bad[..., -1:] - bad)
    changing = (_code(number, bad) + _code(*rest)).min(axis=-1) + CHANGE
    return np.asarray(np.minimum(changing, _code(number[..., -1], bad[..., -1])), np.float64)


def _code(number: Counts, bad: Counts) -> Vector:
    """Return the length of a list of ``number`` runs, ``bad`` of them slow, if all rates are equally likely."""
    orders = _LOG_FACTORIALS[number + 1] - _LOG_FACTORIALS[bad] - _LOG_FACTORIALS[number - bad]
    return np.asarray(orders, np.float64)
