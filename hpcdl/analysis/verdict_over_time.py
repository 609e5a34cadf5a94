"""Verdict on an archive: new events since a date, and the exit code of a nightly check."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from hpcdl.analysis.findings_over_time import judge
from hpcdl.analysis.nominal_rate import below_floor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.findings_over_time import Event, Judgement
    from hpcdl.analysis.history import History
    from hpcdl.analysis.nominal_rate import BelowFloor
    from hpcdl.analysis.slow_drift import Drift
    from hpcdl.analysis.suspects import Named


@dataclass(frozen=True)
class Judged:
    """History of one suite with its findings; those are new that a run since a date brought to light."""

    history: History
    since: str
    """ISO 8601, UTC."""

    @cached_property
    def judgement(self) -> Judgement:
        """All findings."""
        return judge(self.history)

    @cached_property
    def newest(self) -> Sequence[int]:
        """Jobs whose findings are new."""
        return [number for number, job in enumerate(self.history.jobs) if job.date >= self.since]

    @property
    def new_events(self) -> list[Event]:
        """Changes that are new."""
        return [one for one in self.judgement.events if one.found in self.newest]

    @property
    def new_drifts(self) -> list[Drift]:
        """Drifts that are new."""
        return [one for one in self.judgement.drifts if one.found in self.newest]

    @property
    def new_culprits(self) -> list[Named]:
        """Slow hosts and links that are new and that no event names."""
        return [one for one in self.judgement.culprits if one.found in self.newest]

    @cached_property
    def below_floor(self) -> list[BelowFloor]:
        """Collectives below a share of their link's nominal rate."""
        return below_floor(self.history)

    @property
    def new_below_floor(self) -> list[BelowFloor]:
        """Collectives that are below the floor since a new run."""
        return [one for one in self.below_floor if one.found in self.newest]

    @property
    def missing(self) -> list[tuple[str, str]]:
        """Case and reason of each case that the newest job lacks."""
        return self.history.missing(len(self.history.jobs) - 1) if self.newest else []

    @property
    def verdict(self) -> Literal["regressed", "too few runs", "improved", "fine"]:
        """Worst verdict of the new events."""
        slower = any(one.verdict == "regressed" for one in self.new_events)
        if slower or self.new_drifts or self.new_culprits or self.new_below_floor or self.missing:
            return "regressed"
        if not self.newest or not self.judgement.judged:
            return "too few runs"
        return "improved" if self.new_events else "fine"
