"""Slow hosts by the times of runs: those without which the slow runs have no good explanation.

A run takes the time of its slowest host: a slow run accuses all of its hosts, a usual one clears them. Sets of
slow hosts are compared by description length (Rissanen, Automatica 14, 1978), in nats. A host costs the logarithm
of the number of hosts, and of the square of the number of its accusations, so that noise names few hosts in an
archive of any length. Neighbours, such as those of a switch, are described at once: they cost the square of their
number, too. Runs that no slow host explains cost the surprise of which of them are slow. Their rate may change
once, or slow runs may follow each other: if all runs are slow from some night on, no host is the cause.

A host is named if the shortest description without it is longer by :data:`EVIDENCE`. If that holds for several
hosts together only, one of them is slow.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hpcdl.analysis.statistics.differences import Flags, Vector
from hpcdl.analysis.statistics.estimates import Counts

WINDOW: Final = 60
"""Runs that are explained together, or tell what chance does; a host in none of them is slow no more."""
EVIDENCE: Final = 4.0
"""Least advantage of a named host, in nats (chosen by simulation: tests/analysis/history_figures.py)."""
CHANGE: Final = 1.0
"""Cost of a change of the rate, in nats."""
ACCUSATIONS: Final = 3
"""Slow runs of a named host, at least."""

_LOG_FACTORIALS: Final = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, WINDOW + 2)))])


@dataclass
class Explanation:
    """A slow host, slow neighbours, or several hosts of which one is slow."""

    hosts: list[int]
    first: int
    found: int
    """Run with which it was named."""
    last: int
    """Last run in which one of the hosts took part."""
    usual: int | None = None
    """That run, if it was a usual one."""
    ended: int | None = None
    """First of the runs that cleared it; None while it is slow."""
    one_of: bool = False
    """True if one of the hosts is slow."""


def explanations(slow: Flags, measured: Flags, there: Flags, lines: Sequence[Sequence[int]]) -> list[Explanation]:
    """Return the slow hosts in the order in which they were named; a later run alters no more than the neighbours.

    ``slow`` and ``measured`` (runs,); ``there`` (hosts, runs): hosts that took part; ``lines``: hosts in the order
    in which they are neighbours, each in one line.
    """
    orders = [np.array(line) for line in lines]
    since = np.zeros(len(there), np.int64)  # run after the last usual one
    accused, episodes = np.zeros(len(there), bool), np.zeros(len(there))
    named, ended, groups = list[Explanation](), list[Explanation](), list[Explanation]()
    for run in np.flatnonzero(measured).tolist():
        here = there[:, run]
        for suspect in named:
            if run - suspect.last > WINDOW:
                suspect.ended = run
            elif here[suspect.hosts].any():
                suspect.ended = None if slow[run] else suspect.usual  # two usual runs in a row
                suspect.last, suspect.usual = run, None if slow[run] else run
        ended += [suspect for suspect in named if suspect.ended is not None]
        named = [suspect for suspect in named if suspect.ended is None]
        if slow[run]:
            episodes += here & ~accused
            accused |= here
        else:
            accused[here], since[here] = False, run + 1
        runs = np.flatnonzero(measured[: run + 1])[-WINDOW:]
        for suspect in (suspect for suspect in named if len(suspect.hosts) == 1):
            runs = runs[~(there[suspect.hosts[0], runs] & slow[runs] & (runs >= suspect.first))]
        costs = math.log(len(there)) + 2 * np.log(np.maximum(episodes, 1))
        candidates = list(_candidates(runs, slow[runs], there[:, runs], orders, since, costs))
        groups = []
        for hosts, one_of in _needed(candidates, slow[runs], len(there)):
            begin = int(since[hosts].max())
            first = begin + int((there[hosts, begin:].any(axis=0) & slow[begin:]).argmax())
            if one_of:
                groups.append(Explanation(hosts, first, run, run, one_of=True))
                continue
            within = [suspect for suspect in named if {*suspect.hosts} & {*hosts}]
            first = min([first, *(suspect.first for suspect in within)])
            found = min([run, *(suspect.found for suspect in within)])
            named = [suspect for suspect in named if suspect not in within]
            named.append(Explanation(hosts, first, found, run))
    return sorted([*ended, *named, *groups], key=lambda explanation: explanation.found)


def _candidates(
    runs: Counts, slow: Flags, there: Flags, orders: Sequence[Counts], since: Counts, costs: Vector
) -> Iterator[tuple[list[int], Flags, float]]:
    """Yield hosts that explain a slow one of ``runs``, and neighbours that explain several; these runs; the cost.

    Up to 64 neighbours explain the slow runs since the last usual one with any of them; they cost the square of
    their number, too. Those that explain no more than fewer of them are left out.
    """
    for order in orders:
        alone = there[order] & slow
        together, begin, most = alone, since[order], np.zeros(len(order) + 1, np.int64)
        for size in range(1, min(len(order), 64) + 1):
            explained = together & (runs >= begin[:, None])
            count, most = explained.sum(axis=1), np.maximum(most[:-1], most[1:])
            for position in np.flatnonzero((count > most) & (count >= (1 if size == 1 else ACCUSATIONS))).tolist():
                hosts = order[position : position + size].tolist()
                yield hosts, explained[position], float(costs[hosts].max()) + 2 * math.log(size)
            most = np.maximum(count, most)
            together, begin = together[:-1] | alone[size:], np.maximum(begin[:-1], since[order[size:]])


def _needed(
    candidates: Sequence[tuple[list[int], Flags, float]], slow: Flags, hosts: int
) -> Iterator[tuple[list[int], bool]]:
    """Yield hosts without which any description of the slow runs is longer; True if just one of them is slow."""
    explains = np.array([runs for _, runs, _ in candidates], bool).reshape(-1, len(slow))
    costs = np.array([cost for *_, cost in candidates])
    members = np.zeros((len(candidates), hosts), bool)
    for row, (mine, *_) in enumerate(candidates):
        members[row, mine] = True
    accused = explains.sum(axis=1) >= ACCUSATIONS
    if not accused.any() or _length(explains, slow, costs, []) < EVIDENCE + costs[accused].min():
        return
    shortest, chosen = _described(explains, slow, costs)
    evidence = EVIDENCE + max(0, len(chosen) - 2)  # a description with more hosts may not be the shortest
    for row in [row for row in chosen if accused[row]]:
        groups = [[row]]
        if members[row].sum() == 1:
            rest = [other for other in chosen if other != row]
            alike = (_lengths(explains, slow, costs, rest) - shortest < evidence) & (members.sum(axis=1) == 1)
            alike[chosen] = False
            groups.append([row, *np.flatnonzero(alike).tolist()])
        for group in groups:
            suspected = members[group].any(axis=0)
            others = explains & ~(members & suspected).any(axis=1, keepdims=True)
            # more than four hosts, of which one is slow, are not worth a name
            if len(group) <= 4 and _described(others, slow, costs)[0] - shortest >= evidence:
                yield np.flatnonzero(suspected).tolist(), len(group) > 1
                break


def _described(explains: Flags, slow: Flags, costs: Vector) -> tuple[float, list[int]]:
    """Return length and candidates of a short description: the best in turn, less the superfluous ones."""
    chosen: list[int] = []
    shortest = _length(explains, slow, costs, chosen)
    while True:
        lengths = _lengths(explains, slow, costs, chosen)
        best = int(lengths.argmin())
        if lengths[best] >= shortest:
            return shortest, chosen
        shortest = float(lengths[best])
        chosen.append(best)
        for other in chosen[:-1]:
            fewer = [row for row in chosen if row != other]
            length = _length(explains, slow, costs, fewer)
            if length < shortest:
                shortest, chosen = length, fewer


def _length(explains: Flags, slow: Flags, costs: Vector, chosen: list[int]) -> float:
    free = np.logical_not(explains[chosen].any(axis=0, keepdims=True))
    return float(_surprise(free, slow)[0]) + float(costs[chosen].sum())


def _lengths(explains: Flags, slow: Flags, costs: Vector, chosen: list[int]) -> Vector:
    """(candidates,): length of the description by ``chosen`` and each candidate."""
    free = ~(explains[chosen].any(axis=0) | explains)
    return np.asarray(_surprise(free, slow) + costs[chosen].sum() + costs, np.float64)


def _surprise(free: Flags, slow: Flags) -> Vector:
    """(...,): length of the list of the slow runs among those that are ``free`` (..., runs).

    Their rate is one, changes once, or is another after a slow run than after a usual one.
    """
    number, bad = (np.cumsum(flags, axis=-1, dtype=np.int64) for flags in (free, free & slow))
    rest: tuple[Counts, Counts] = (number[..., -1:] - number, bad[..., -1:] - bad)
    changing = (_code(number, bad) + _code(*rest)).min(axis=-1) + CHANGE
    order = np.argsort(~free, axis=-1, kind="stable")  # free runs first
    follows = np.arange(1, free.shape[-1]) < number[..., -1:]
    before, after = slow[order[..., :-1]], slow[order[..., 1:]]
    followed = [follows & last for last in (before, ~before)]
    states = [_code(last.sum(axis=-1), (last & after).sum(axis=-1)) for last in followed]
    codes = [_code(number[..., -1], bad[..., -1]), changing, states[0] + states[1] + 2 * CHANGE]
    return np.asarray(np.min(codes, axis=0), np.float64)


def _code(number: Counts, bad: Counts) -> Vector:
    """Return the length of a list of ``number`` runs, ``bad`` of them slow, if all rates are equally likely."""
    orders = _LOG_FACTORIALS[number + 1] - _LOG_FACTORIALS[bad] - _LOG_FACTORIALS[number - bad]
    return np.asarray(orders, np.float64)
