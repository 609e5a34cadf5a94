"""Verdict on an archive: what is open now, and the exit code of a nightly check.

A finding is open from the run that brought it to light until a repair, whenever the archive is judged. Accepted
findings say nothing until their expiry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from hpcdl.analysis.over_time.change_points import BEFORE, Change, change_points, joined
from hpcdl.analysis.over_time.suspects import suspects

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.over_time.history import History
    from hpcdl.analysis.over_time.regressions import Accepted
    from hpcdl.analysis.over_time.suspects import Suspect


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
    judged: int
    """Series of the newest run with at least :data:`hpcdl.analysis.over_time.change_points.BEFORE` values."""
    short: int
    """Series of the newest run with fewer."""


def judge(history: History, groups: Mapping[str, str] | None = None) -> HistoryFindings:
    """Judge each run of a history with the runs before it. ``groups``: switch of each host, if known."""
    logs, predecessors = history.logs, history.predecessors
    whole = joined(logs, predecessors)
    count = np.isfinite(whole).sum(axis=1)[np.isfinite(logs[:, -1])]
    changes = change_points(logs, predecessors)
    slow = suspects(history, groups or {})
    first = {row: int(np.isfinite(logs[row]).argmax()) for row in predecessors}
    events = [_event(group, slow, first) for group in _together(changes)]
    return HistoryFindings(events, slow, int((count >= BEFORE).sum()), int((count < BEFORE).sum()))


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
            suspect
            for suspect in slow
            if slower and abs(suspect.first - first) <= TOGETHER and (suspect.ended or found + 1) > found
        ],
        2 * sum(boundary) > len(group),
    )


@dataclass(frozen=True)
class SuiteVerdict:
    """History of one suite, with its findings and those of them that are open."""

    history: History
    accepted: Sequence[Accepted] = ()
    """Valid today; the pattern is that of a case, or of a suspect: ``host node03``."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Switch of each host."""
    age: dt.timedelta | None = None
    """Of the newest run, if that is too old."""

    @cached_property
    def findings(self) -> HistoryFindings:
        """All findings."""
        return judge(self.history, self.groups)

    def accepts(self, name: str) -> Accepted | None:
        """Return the entry that accepts a case or suspect; None if none does."""
        return next((entry for entry in self.accepted if entry.matches(name)), None)

    @cached_property
    def open_events(self) -> list[Event]:
        """Regressions of which a series is neither repaired nor accepted."""
        keys = self.history.keys
        return [
            event
            for event in self.findings.events
            if any(not self.accepts(keys[change.series].case) for change in event.open)
        ]

    @property
    def accepted_events(self) -> list[Event]:
        """Regressions that are not repaired, and are accepted."""
        return [event for event in self.findings.events if event.open and event not in self.open_events]

    @property
    def news(self) -> list[Event]:
        """Improvements and repairs that the newest run brought to light."""
        newest = len(self.history.jobs) - 1
        return [event for event in self.findings.events if event.ratio < 1 and event.found == newest]

    @cached_property
    def open_suspects(self) -> list[Suspect]:
        """Slow hosts and links of no regression."""
        taken = [suspect for event in self.findings.events if event.open for suspect in event.suspects]
        slow = [suspect for suspect in self.findings.suspects if suspect.ended is None and suspect not in taken]
        return [suspect for suspect in slow if not self.accepts(f"{suspect.kind} {suspect.name}")]

    @property
    def missing(self) -> list[tuple[str, str]]:
        """Case and reason of each case that the newest job lacks."""
        return [(case, reason) for case, reason in self.history.missing() if not self.accepts(case)]

    @property
    def verdict(self) -> Literal["regressed", "too few runs", "improved", "fine"]:
        """Worst verdict."""
        if self.open_events or self.open_suspects or self.missing:
            return "regressed"
        if not self.findings.judged:
            return "too few runs"
        return "improved" if self.news else "fine"
