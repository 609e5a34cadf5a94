"""State of an archive: findings that are open, accepted or new, and measures that cannot be judged yet.

A finding is open from the run that brought it to light until a repair, whenever the archive is judged. An accepted
one is not open until its expiry, and while the acceptance covers its size.
"""

import datetime as dt
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np

from hpcdl.analysis.over_time.change_points import (
    AFTER,
    BEFORE,
    LASTING,
    MIN_EFFECT,
    Calibration,
    Change,
    Search,
    calibrate,
    far_above,
)
from hpcdl.analysis.over_time.regressions import Accepted, acceptance
from hpcdl.analysis.over_time.series import History
from hpcdl.analysis.over_time.suspects import Suspect, suspects

EventKind = Literal["regressed", "returned", "improved", "restored", "unstable start"]

TOGETHER: Final = 2
"""Runs by which the first runs of changes may differ that are one event."""


@dataclass(frozen=True)
class Event:
    """Changes of several series, in one direction, at one run."""

    verdict: EventKind
    """Returned: slower again, at a level that most of the series had before. Unstable start: a change before most
    of the series had a level."""
    changes: Sequence[Change]
    """Largest first."""
    first: int
    """First run after the change: that of most of the series."""
    found: int
    """Run that made the first of the changes significant."""
    suspects: Sequence[Suspect]
    """Hosts and links that became slow with the first run."""
    environment: bool
    """True if the run is the first one of most of the series in a new environment."""

    @property
    def open(self) -> list[Change]:
        """Changes for the worse whose series have not returned to the level before."""
        return [change for change in self.changes if change.open]

    @property
    def is_slower(self) -> bool:
        """True for a change for the worse."""
        return self.changes[0].ratio.value > 1


@dataclass(frozen=True)
class Waiting:
    """Series of the newest run that cannot be judged yet."""

    series: int
    reason: Literal["short", "unstable start", "outlier", "suspected change"]
    """Fewer runs than a judgement needs, in all or since an unstable start; or the newest runs are far above.

    One or two of them are an outlier; three that are no change yet are a suspected change, and so are outliers of
    half of all series.
    """
    runs: int
    """Further runs until it can be judged."""
    ratio: float = 1.0
    """Newest time / level before, of an outlier or a suspected change."""
    outliers: int = 0
    """Number of the newest runs that are far above."""


def _together(changes: Sequence[Change]) -> list[list[Change]]:
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
    """Return an event; ``environments``: first run of each series in a new environment."""
    firsts, slower = [change.first for change in group], group[0].ratio.value > 1
    first, found = max(sorted(set(firsts)), key=firsts.count), min(change.found for change in group)
    half = len(group) / 2
    verdicts: tuple[EventKind, EventKind] = ("regressed", "returned") if slower else ("improved", "restored")
    kind = verdicts[sum(change.returned for change in group) > half]
    if sum(change.unstable_start for change in group) > half:
        kind = "unstable start"
    boundary = [abs(environments.get(change.series, -TOGETHER - 1) - first) <= TOGETHER for change in group]
    causes = [suspect for suspect in slow if slower and abs(suspect.first - first) <= TOGETHER]
    causes = [suspect for suspect in causes if suspect.ended is None or suspect.ended > found]
    changes = sorted(group, key=lambda change: abs(np.log(change.ratio.value)), reverse=True)
    return Event(kind, changes, first, found, causes, sum(boundary) > half)


@dataclass(frozen=True)
class SuiteVerdict:
    """History of one suite, with all findings and those of them that are open."""

    history: History
    accepted: Sequence[Accepted] = ()
    """The pattern is that of a case, or of a suspect: ``host node03``."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Switch of each host."""
    age: dt.timedelta | None = None
    """Of the newest run, if that is too old."""
    today: dt.date = dt.date.min
    """Acceptances that expired before it do not count."""
    calibrated: bool = False
    """True if the rate of false alarms on the archive's own noise is asked for."""

    @cached_property
    def search(self) -> Search:
        """All changes, each run judged with the runs before it."""
        return Search(self.history.logs, self.history.predecessors)

    @cached_property
    def suspects(self) -> list[Suspect]:
        """Slow hosts and links, in the order in which they were named."""
        return suspects(self.history, self.groups)

    @cached_property
    def events(self) -> list[Event]:
        """Changes that are one event each, in the order in which they were found."""
        return [_event(group, self.suspects, self.search.first) for group in _together(self.search.changes)]

    @cached_property
    def _all_waiting(self) -> list[Waiting]:
        """Series of the newest run that cannot be judged yet, and outliers."""
        unstable = {change.series: change.first for change in self.search.changes if change.unstable_start}
        waiting, far = list[Waiting](), list[Waiting]()
        newest = np.flatnonzero(self.search.measured[:, -1]).tolist()
        for row in newest:
            values = self.search.since(row)
            needed = BEFORE + AFTER - int(np.isfinite(self.search.logs[row, unstable.get(row, 0) :]).sum())
            if needed > 0:
                waiting.append(Waiting(row, "unstable start" if row in unstable else "short", needed))
            elif outliers := far_above(values):
                logs = self.search.since(row, self.search.logs)
                ratio = float(np.exp(logs[-1] - np.median(logs[:-outliers])))
                lasting = outliers >= AFTER
                runs = LASTING + 1 - outliers if lasting else AFTER - outliers
                far.append(Waiting(row, "suspected change" if lasting else "outlier", runs, ratio, outliers))
        if len(far) > 1 and 2 * len(far) >= len(newest) - len(waiting):
            far = [replace(series, reason="suspected change") for series in far]
        return [*waiting, *far]

    def waiting(self, *reasons: str) -> list[Waiting]:
        """Return the series of the newest run that wait for one of the reasons."""
        return [series for series in self._all_waiting if series.reason in reasons]

    @property
    def judged(self) -> int:
        """Series of the newest run that can be judged; outliers and suspected changes are among them."""
        return int(self.search.measured[:, -1].sum()) - len(self.waiting("short", "unstable start"))

    @cached_property
    def calibration(self) -> Calibration | None:
        """False alarms in shuffled runs, if asked for."""
        is_wanted = self.calibrated and len(self.history.keys)
        return calibrate(self.history.logs, self.search.changes) if is_wanted else None

    def acceptance(self, name: str, ratio: float = 1.0) -> tuple[Accepted | None, str]:
        """Return the entry that accepts a case or suspect with a ratio of times, or why none that matches does."""
        return acceptance(name, ratio, self.accepted, MIN_EFFECT, self.today)

    def of_change(self, change: Change) -> tuple[Accepted | None, str]:
        """Return the entry that accepts a change, or why none that matches does."""
        return self.acceptance(self.history.keys[change.series].case, change.total)

    def of_suspect(self, suspect: Suspect) -> tuple[Accepted | None, str]:
        """Return the entry that accepts a suspect, or why none that matches does."""
        return self.acceptance(f"{suspect.kind} {suspect.name}", suspect.ratio)

    def unaccepted(self, event: Event) -> list[Change]:
        """Return the open changes of an event that no entry accepts, the largest first."""
        return [change for change in event.open if self.of_change(change)[0] is None]

    @cached_property
    def open_events(self) -> list[Event]:
        """Regressions of which a series is neither repaired nor accepted, the largest first."""
        events = [event for event in self.events if self.unaccepted(event)]
        return sorted(events, key=lambda event: -self.unaccepted(event)[0].ratio.value)

    @property
    def accepted_events(self) -> list[Event]:
        """Regressions that are not repaired, and are accepted."""
        return [event for event in self.events if event.open and event not in self.open_events]

    @property
    def news(self) -> list[Event]:
        """Improvements and repairs that the newest run brought to light."""
        newest = len(self.history.jobs) - 1
        return [
            event for event in self.events if event.verdict in {"improved", "restored"} and event.found == newest
        ]

    @cached_property
    def open_suspects(self) -> list[Suspect]:
        """Slow hosts and links of no regression."""
        taken = [suspect for event in self.events if event.open for suspect in event.suspects]
        slow = [suspect for suspect in self.suspects if suspect.ended is None and suspect not in taken]
        return [suspect for suspect in slow if self.of_suspect(suspect)[0] is None]

    @property
    def missing(self) -> list[tuple[str, str]]:
        """Case and reason of each case that the newest job lacks, or that left the suite while regressed.

        Of a case that failed any job before counts, else the last ten: a case may leave a suite. A
        disturbed case is not missing: it has a value, which does not count.
        """
        history, newest = self.history, self.history.jobs[-1]
        failed: dict[str, str] = {}
        for run in newest.runs:
            failed |= {case.case: case.failure for case in run.cases if case.failure} | run.without_result
        recent = {key.case for job in history.jobs[-11:-1] for key in job.measured()}
        usual = recent | ({key.case for key in history.keys} & failed.keys())
        missing = {case: failed.get(case, "not in the run") for case in usual}
        for event in self.events:
            since = f"it left the suite, regressed since {history.jobs[event.first].began:%Y-%m-%d}"
            for change in event.changes:
                if change.ended and change.unrepaired:
                    missing.setdefault(history.keys[change.series].case, since)
        here = {key.case for key in newest.measured()} | newest.disturbed.keys()
        cases = sorted((case, reason) for case, reason in missing.items() if case not in here)
        return [(case, reason) for case, reason in cases if self.acceptance(case)[0] is None]

    def date_after(self, runs: int) -> str:
        """Return the date of a further run, by the median time between runs; with one run their number."""
        dates = [job.began for job in self.history.jobs]
        times = [(after - before).total_seconds() for before, after in itertools.pairwise(dates)]
        step = dt.timedelta(seconds=runs * float(np.median(times or 0)))
        return f"from {dates[-1] + step:%Y-%m-%d}" if times else f"after {runs} more runs"
