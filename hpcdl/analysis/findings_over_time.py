"""Findings in a history: changes of several series at one run are one event, with the likely host or link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from hpcdl.analysis.change_points import BEFORE, Change, change_points
from hpcdl.analysis.slow_drift import Drift, drifts
from hpcdl.analysis.suspects import Named, named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.history import History

TOGETHER: Final = 2
"""Runs by which the first runs of changes may differ that are one event."""
RESTORED: Final = 0.03
"""Largest departure from the level before a regression of a series that is restored."""


@dataclass(frozen=True)
class Event:
    """Changes of several series, in one direction, at one run."""

    verdict: Literal["regressed", "improved", "restored"]
    changes: Sequence[Change]
    """Largest first."""
    first: int
    """First run after the change: that of most of the series."""
    found: int
    """Run that made the first of the changes significant."""
    culprit: Named | None

    @property
    def ratio(self) -> float:
        """Median over the series of the times after by the times before."""
        return float(np.median([one.ratio.value for one in self.changes]))


@dataclass(frozen=True)
class Judgement:
    """All findings in a history."""

    events: Sequence[Event]
    drifts: Sequence[Drift]
    culprits: Sequence[Named]
    """Slow hosts and links that no event names."""
    named: Sequence[Named]
    """All slow hosts and links, in the order in which they were named."""
    judged: int
    """Series of the newest run with at least :data:`hpcdl.analysis.change_points.BEFORE` values."""
    short: int
    """Series of the newest run with fewer."""


def judge(history: History) -> Judgement:
    """Judge each run of a history with the runs before it."""
    logs = history.logs
    count = np.isfinite(logs).sum(axis=1)
    newest = np.flatnonzero(np.isfinite(logs[:, -1]))
    changes = change_points(logs)
    suspects = named(history)
    events = _events(changes, suspects)
    taken = {id(event.culprit) for event in events}
    return Judgement(
        events,
        drifts(logs, changes),
        [one for one in suspects if id(one) not in taken],
        suspects,
        int((count[newest] >= BEFORE).sum()),
        int((count[newest] < BEFORE).sum()),
    )


def _events(changes: Sequence[Change], suspects: Sequence[Named]) -> list[Event]:
    groups: list[list[Change]] = []
    for change in changes:
        for group in reversed(groups):
            leader = group[0]
            same_way = (change.ratio.value > 1) == (leader.ratio.value > 1)
            if same_way and abs(change.first - leader.first) <= TOGETHER:
                group.append(change)
                break
        else:
            groups.append([change])
    levels: dict[int, list[Change]] = {}
    return [_event(group, levels, suspects) for group in groups]


def _event(group: list[Change], levels: dict[int, list[Change]], suspects: Sequence[Named]) -> Event:
    firsts = [one.first for one in group]
    first = max(sorted(set(firsts)), key=firsts.count)
    found = min(one.found for one in group)
    improved = group[0].ratio.value < 1
    back = [one for one in group if improved and _is_back(one, levels.get(one.series, []))]
    for one in group:
        levels.setdefault(one.series, []).append(one)
    verdict: Literal["regressed", "improved", "restored"] = "improved" if improved else "regressed"
    fitting = [
        one
        for one in suspects
        if not improved and abs(one.first - first) <= TOGETHER and (one.ended is None or one.ended > found)
    ]
    return Event(
        "restored" if 2 * len(back) > len(group) else verdict,
        sorted(group, key=lambda one: abs(np.log(one.ratio.value)), reverse=True),
        first,
        found,
        max(fitting, key=lambda one: one.probability, default=None),
    )


def _is_back(change: Change, before: Sequence[Change]) -> bool:
    if not before or before[-1].ratio.value < 1:
        return False
    return abs(float(np.log(change.ratio.value * before[-1].ratio.value))) <= RESTORED
