"""Verdict on an archive: what is open now, and the exit code of a nightly check.

A finding is open from the run that brought it to light until a repair, whenever the archive is judged. Accepted
findings say nothing until their expiry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from hpcdl.analysis.findings_over_time import judge
from hpcdl.analysis.nominal_rate import below_floor

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.accepted import Accepted
    from hpcdl.analysis.findings_over_time import Event, HistoryFindings
    from hpcdl.analysis.history import History
    from hpcdl.analysis.nominal_rate import BelowFloor
    from hpcdl.analysis.suspects import Suspect


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
            one for one in self.below_floor if one.open and not self.accepts(self.history.keys[one.series].case)
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
