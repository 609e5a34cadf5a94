"""Verdict on an archive: what is open now, and the exit code of a nightly check.

A finding is open from the run that brought it to light until a repair, whenever the archive is judged. Accepted
findings say nothing until their expiry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from hpcdl.analysis.over_time.change_points import AFTER, BEFORE, Change, change_points, joined
from hpcdl.analysis.over_time.suspects import Spread, Suspect, suspects
from hpcdl.analysis.run.scaling import bus_factor

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.over_time.change import Accepted
    from hpcdl.analysis.over_time.history import History
    from hpcdl.analysis.over_time.suspects import Suspect


FLOOR: Final = 0.1
"""Share of the nominal rate."""
MIN_BYTES: Final = 1 << 20
"""Smallest message that is judged; smaller ones measure latency."""
UNITS: Final = {"Gb/sec": 1.25e8, "Mbit/s": 1.25e5}
"""Bytes/s of the units of InfiniBand and network rates."""
VIRTUAL: Final = ("unknown", "veth", "bridge")
"""Drivers of interfaces that are no links."""


class BelowFloor(NamedTuple):
    """A collective whose best algorithm is below the floor."""

    series: int
    """Best algorithm in the run ``found``."""
    first: int
    found: int
    """Third run in a row below the floor; ``first`` is the first of them."""
    rate: float
    """Bus bandwidth in the run ``found`` (bytes/s)."""
    nominal: float
    """Of the link (bytes/s)."""
    open: bool = True
    """False if a later run was above the floor."""


def nominal_rate(environment: Mapping[str, Any]) -> float | None:
    """Return the rate of the fastest link of the host (bytes/s); None if unknown."""
    emulated = environment.get("emulated")
    if emulated:  # slow hosts of a testbed emulate a defect
        return float(max(emulated["bytes_per_second"].values()))
    cards = environment.get("network"), environment.get("infiniband")
    rates = [
        float(rate[1]) * UNITS[rate[2]]
        for kind in cards
        if isinstance(kind, dict)
        for card in kind.values()
        if card.get("driver") not in VIRTUAL
        and re.search("up|ACTIVE", str(card.get("state")))
        and (rate := re.match(r"([\d.]+) (Gb/sec|Mbit/s)", str(card.get("rate"))))
    ]
    return max(rates, default=None)


def below_floor(history: History) -> list[BelowFloor]:
    """Return the collectives whose best algorithm stayed below the floor for three runs, once per stay."""
    nominal = [nominal_rate(job.environment) for job in history.jobs]
    return [stay for rows in _groups(history) for stay in _stays(history, rows, nominal)]


def _groups(history: History) -> list[list[int]]:
    """Return the series of each collective, number of ranks and environment at its largest size."""
    groups: dict[tuple[str, int, str], dict[int, list[int]]] = {}
    for row, key in enumerate(history.keys):
        case = history.case(row)
        if case.nodes > 1 and (case.message_bytes or 0) >= MIN_BYTES and bus_factor(case.collective, case.ranks):
            sizes = groups.setdefault((case.collective, case.ranks, key.environment_key), {})
            sizes.setdefault(case.message_bytes or 0, []).append(row)
    return [sizes[max(sizes)] for sizes in groups.values()]


def _stays(history: History, rows: list[int], nominal: list[float | None]) -> list[BelowFloor]:
    case = history.case(rows[0])
    moved = (case.message_bytes or 0) * (bus_factor(case.collective, case.ranks) or 0.0)
    times = history.seconds[rows]
    floors: list[BelowFloor] = []
    low: list[int] = []
    for run in np.flatnonzero(np.isfinite(times).any(axis=0)).tolist():
        best = int(np.nanargmin(times[:, run]))
        rate, link = moved / float(times[best, run]), nominal[run]
        low = [*low, run] if link is not None and rate < FLOOR * link else []
        if not low and floors:
            floors[-1] = floors[-1]._replace(open=False)
        if link is not None and len(low) == AFTER:
            floors.append(BelowFloor(rows[best], low[0], run, rate, link))
    return floors


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
    """Series of the newest run with at least :data:`hpcdl.analysis.over_time.change_points.BEFORE` values."""
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
            floor
            for floor in slow
            if slower and abs(floor.first - first) <= TOGETHER and not 0 <= (floor.ended or -1) <= found
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

    @cached_property
    def below_floor(self) -> list[BelowFloor]:
        """Collectives below a share of their link's nominal rate."""
        return below_floor(self.history)

    @property
    def open_below_floor(self) -> list[BelowFloor]:
        """Collectives that are below the floor now."""
        return [
            floor
            for floor in self.below_floor
            if floor.open and not self.accepts(self.history.keys[floor.series].case)
        ]

    @property
    def missing(self) -> list[tuple[str, str]]:
        """Case and reason of each case that the newest job lacks."""
        return [(case, reason) for case, reason in self.history.missing() if not self.accepts(case)]

    @property
    def verdict(self) -> Literal["regressed", "too few runs", "improved", "fine"]:
        """Worst verdict."""
        if self.open_events or self.open_suspects or self.open_below_floor or self.missing:
            return "regressed"
        if not self.findings.judged:
            return "too few runs"
        return "improved" if self.news else "fine"
