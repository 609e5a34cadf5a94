"""How fast every rank reaches every other, and which host or link is slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.launches import warmup_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.trace.run import Run

Matrix = npt.NDArray[np.float64]

CONSPICUOUS: Final = 0.85
"""A host or link with less than this share of the others' speed is named."""


def rounds(ranks: int, pattern: str) -> list[list[int | None]]:
    """Who exchanges with whom, round by round: a partner for every rank, None for one that rests.

    ``pair``: ranks 0 and 1. ``bisection``: one round, rank r of the lower half with r of the upper one, so that
    every message crosses the middle. ``all_pairs``: every pair once, and no rank in two pairs of a round, by the
    circle method of round-robin tournaments (Kirkman 1847): p - 1 rounds, p if p is odd.
    """
    if pattern == "pair":
        return [[1, 0, *[None] * (ranks - 2)]]
    if pattern == "bisection":
        half = ranks // 2
        return [[(rank + half) % ranks for rank in range(ranks)]]
    seats = ranks + ranks % 2
    found = []
    for turn in range(seats - 1):
        partners: list[int | None] = [None] * ranks
        for rank in range(ranks):
            # the last seat stays, and meets who would meet himself; the others move on around the table
            if rank == seats - 1:
                other = turn * (seats // 2) % (seats - 1)
            else:
                other = (turn - rank) % (seats - 1)
                other = seats - 1 if other == rank else other
            partners[rank] = other if other < ranks else None
        found.append(partners)
    return found


@dataclass(frozen=True)
class Links:
    """One case's links."""

    fields: Mapping[str, Any]
    hosts: Sequence[str]
    """Of each rank."""
    seconds: Matrix
    """(p, p): median time of an exchange, the slower side's; NaN between ranks that did not exchange."""

    @property
    def rates(self) -> Matrix:
        """Bytes per second in each direction, both at once; NaN where there is no time."""
        size = float(self.fields["message_bytes"])
        return size / self.seconds

    def shares(self) -> list[tuple[int, float]]:
        """Ranks, and the speed of each as a share of the others', slowest first.

        A rank's speed is the median over its links, the others' the median over all links without it.
        """
        speed = 1 / self.seconds
        found = []
        for rank in range(len(speed)):
            others = np.delete(np.delete(speed, rank, 0), rank, 1)
            if np.isfinite(others).any() and np.isfinite(speed[rank]).any():
                share = float(np.nanmedian(speed[rank]) / np.nanmedian(others))
                found.append((rank, share))
        return sorted(found, key=lambda one: one[1])

    def slow_hosts(self) -> list[tuple[int, float]]:
        """Those of :meth:`shares` that are slow with everybody."""
        return [(rank, share) for rank, share in self.shares() if share < CONSPICUOUS]

    def extremes(self) -> list[tuple[int, int, float]]:
        """The fastest and the slowest pair, with their seconds; nothing where nobody exchanged."""
        if not np.isfinite(self.seconds).any():
            return []
        places = (np.nanargmin(self.seconds), np.nanargmax(self.seconds))
        pairs = [divmod(int(place), len(self.seconds)) for place in places]
        return [(min(pair), max(pair), float(self.seconds[pair])) for pair in pairs]

    def slow_links(self) -> list[tuple[int, int, float]]:
        """Pairs that are slow although neither rank is, and their share of the median link, slowest first."""
        speed = 1 / self.seconds
        usual = np.nanmedian(speed)
        slow = {rank for rank, _ in self.slow_hosts()}
        pairs = [
            (i, j, float(speed[i, j] / usual))
            for i in range(len(speed))
            for j in range(i + 1, len(speed))
            if not {i, j} & slow and speed[i, j] < CONSPICUOUS * usual
        ]
        return sorted(pairs, key=lambda one: one[2])


def links(run: Run) -> list[Links]:
    """The links of every case of ``run`` in which more than one pair exchanged."""
    steps = run.steps
    hosts = [str(rank.get("hostname", "")) for rank in run.environment.get("ranks") or []]
    found = []
    for index, fields in enumerate(run.described):
        if fields.get("kind") == "pairwise" and fields.get("pattern", "pair") != "pair":
            mine = steps[steps["case_index"] == index]
            seconds = _seconds(fields, mine["rank"].to_numpy(), mine["end"].to_numpy() - mine["begin"].to_numpy())
            found.append(Links(fields, hosts[: len(seconds)], seconds))
    return found


def _seconds(fields: Mapping[str, Any], rank: npt.NDArray[np.int64], duration: npt.NDArray[np.int64]) -> Matrix:
    """Median time of each pair: after the warm-up, every round has the same number of repetitions."""
    ranks = int(fields["ranks"])
    table = rounds(ranks, str(fields["pattern"]))
    seconds = np.full((ranks, ranks), np.nan)
    for mine in range(ranks):
        timed = duration[rank == mine][warmup_of(fields) :].reshape(len(table), -1)
        for partners, times in zip(table, timed, strict=True):
            other = partners[mine]
            if other is not None:
                seconds[mine, other] = np.median(times) * 1e-9
    slower: Matrix = np.fmax(seconds, seconds.T)
    return slower
