"""Accepted regressions: cases, reason and date of expiry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from hpcdl.analysis.change import ACCEPTED, REGRESSED

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from hpcdl.analysis.change import Change


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
        entries = [one for one in accepted if one.matches(change.case)] if change.verdict == REGRESSED else []
        valid = next((one for one in entries if one.expires >= today), None)
        if valid is not None:
            reason = f"accepted until {valid.expires}: {valid.reason}"
            found.append(replace(change, verdict=ACCEPTED, reason=reason))
        elif entries:
            found.append(replace(change, reason=f"accepted until {entries[0].expires}, which has passed"))
        else:
            found.append(change)
    expired = [one for one in accepted if one.expires < today]
    unused = [one for one in accepted if not any(one.matches(change.case) for change in changes)]
    return Applied(found, expired, unused)
