"""Findings in a history: changes of several series at one run are one event, with the likely hosts or links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from hpcdl.analysis.change_points import BEFORE, Change, change_points, joined
from hpcdl.analysis.suspects import Spread, Suspect, suspects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.history import History

Verdict = Literal["regressed", "two states", "improved", "restored"]

TOGETHER: Final = 2
"""Runs by which the first runs of changes may differ that are one event."""


@dataclass(frozen=True)
class Event:
    """Changes of several series, in one direction, at one run."""

    verdict: Verdict
    """Two states: slower again, at a level that most of the series had before."""
    changes: Sequence[Change]
    """Largest first."""
    first: int
    """First run after the change: that of most of the series."""
    found: int
    """Run that made the first of the changes significant."""
    suspects: Sequence[Suspect]
    """Hosts and links that became slow at that run."""
    environment: bool
    """True if the run is the first one of most of the series in a new environment."""

    @property
    def open(self) -> list[Change]:
        """Changes for the worse whose series have not returned to the level before."""
        return [change for change in self.changes if change.open]

    @property
    def ratio(self) -> float:
        """Median over the series of the times after by the times before."""
        return float(np.median([change.ratio.value for change in self.changes]))


@dataclass(frozen=True)
class HistoryFindings:
    """All findings in a history."""

    events: Sequence[Event]
    suspects: Sequence[Suspect]
    """Slow hosts and links, in the order in which they were named."""
    spread: Spread | None
    """Of the hosts' links if no host is slow."""
    judged: int
    """Series of the newest run with at least :data:`hpcdl.analysis.change_points.BEFORE` values."""
    short: int
    """Series of the newest run with fewer."""


def judge(history: History, groups: Mapping[str, str] | None = None) -> HistoryFindings:
    """Judge each run of a history with the runs before it. ``groups``: switch of each host, if known."""
    logs, predecessors = history.logs, history.predecessors
    whole = joined(logs, predecessors)
    count = np.isfinite(whole).sum(axis=1)[np.isfinite(logs[:, -1])]
    changes = change_points(logs, predecessors)
    slow, spread = suspects(history, groups or {})
    first = {row: int(np.isfinite(logs[row]).argmax()) for row in predecessors}
    events = [_event(group, slow, first) for group in _together(changes)]
    return HistoryFindings(events, slow, spread, int((count >= BEFORE).sum()), int((count < BEFORE).sum()))


def _together(changes: Sequence[Change]) -> list[list[Change]]:
    """Return the changes in one direction at one run, for each run."""
    groups: list[list[Change]] = []
    for change in changes:
        for group in reversed(groups):
            same_way = (change.ratio.value > 1) == (group[0].ratio.value > 1)
            if same_way and abs(change.first - group[0].first) <= TOGETHER:
                group.append(change)
                break
        else:
            groups.append([change])
    return groups


def _event(group: list[Change], slow: Sequence[Suspect], environments: Mapping[int, int]) -> Event:
    firsts = [change.first for change in group]
    first = max(sorted(set(firsts)), key=firsts.count)
    found = min(change.found for change in group)
    slower = group[0].ratio.value > 1
    verdicts: tuple[Verdict, Verdict] = ("regressed", "two states") if slower else ("improved", "restored")
    boundary = [abs(environments.get(change.series, -TOGETHER - 1) - first) <= TOGETHER for change in group]
    return Event(
        verdicts[2 * sum(change.returned for change in group) > len(group)],
        sorted(group, key=lambda change: abs(np.log(change.ratio.value)), reverse=True),
        first,
        found,
        [
            one
            for one in slow
            if slower and abs(one.first - first) <= TOGETHER and not 0 <= (one.ended or -1) <= found
        ],
        2 * sum(boundary) > len(group),
    )
