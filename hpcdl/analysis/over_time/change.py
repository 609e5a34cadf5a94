"""Accepted regressions: cases, reason and date of expiry."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence


FAILED, MISSING, REGRESSED, ACCEPTED = "failed", "missing", "regressed", "accepted"
INCONCLUSIVE, IMPROVED, UNCHANGED, NEW = "inconclusive", "improved", "unchanged", "new"
VERDICTS: Final = (FAILED, REGRESSED, MISSING, ACCEPTED, INCONCLUSIVE, IMPROVED, UNCHANGED, NEW)
"""Worst first."""

BAD: Final = (FAILED, REGRESSED, MISSING)
"""Verdicts with which a comparison fails."""


@dataclass(frozen=True)
class Change:
    """One measure of one case; numbers are NaN where they are not known."""

    suite: str
    case: str
    measure: str
    verdict: str
    reason: str
    """Reason of the verdict: an error, missing launches, or an accepted regression; empty for a test result."""
    launches: tuple[int, int]
    """Of the baseline and of the candidate."""
    baseline: float = math.nan
    """Geometric mean over units (s)."""
    candidate: float = math.nan
    ratio: float = math.nan
    """Candidate by baseline."""
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    """Adjusted."""
    smallest: float = math.nan
    """Smallest ratio that would be found with 80 % power if many measures changed by it together."""
    smallest_alone: float = math.nan
    """Smallest ratio that would be found with 80 % power if no other measure changed."""


@dataclass(frozen=True)
class Accepted:
    """Regressions of some cases that are accepted until a date."""

    case: str
    """Name of a case, or a pattern of names (*, ?)."""
    reason: str
    expires: dt.date
    """Last day on which they are accepted."""

    def matches(self, case: str) -> bool:
        """Return True for a case whose regression is accepted."""
        return case == self.case or fnmatchcase(case, self.case)


class Applied(NamedTuple):
    """Changes after accepted regressions have been taken into account."""

    changes: list[Change]
    expired: list[Accepted]
    unused: list[Accepted]


def apply(changes: Sequence[Change], accepted: Sequence[Accepted], today: dt.date) -> Applied:
    """Change the verdict of accepted regressions; expired ones count as regressed, with the date as reason."""
    found = []
    for change in changes:
        entries = (
            [entry for entry in accepted if entry.matches(change.case)] if change.verdict == REGRESSED else []
        )
        valid = next((entry for entry in entries if entry.expires >= today), None)
        if valid is not None:
            reason = f"accepted until {valid.expires}: {valid.reason}"
            found.append(replace(change, verdict=ACCEPTED, reason=reason))
        elif entries:
            found.append(replace(change, reason=f"accepted until {entries[0].expires}, which has passed"))
        else:
            found.append(change)
    expired = [entry for entry in accepted if entry.expires < today]
    unused = [entry for entry in accepted if not any(entry.matches(change.case) for change in changes)]
    return Applied(found, expired, unused)
