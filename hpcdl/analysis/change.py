"""One measure of one case in a comparison of two sets of runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

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
