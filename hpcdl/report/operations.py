"""Single operations, grouped by comparability, and the fastest of each group."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from hpcdl.analysis.conditions import settings, words
from hpcdl.analysis.labels import label
from hpcdl.report.formatting import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcdl.analysis.scaling import Record

CHECKED: Final = {True: "yes", False: "NO", None: "not checked"}
"""Cell for a result that was right, wrong or not checked."""
BEST: Final = "fastest"
TIED: Final = "tied"


class Group(NamedTuple):
    """Comparable operations: one collective on as many ranks, all measured or all on one simulated network."""

    collective: str
    ranks: int
    dtype: str
    network: str
    conditions: tuple[str, ...]

    @property
    def title(self) -> str:
        """Collective, ranks, type and conditions in words."""
        return self.titled(plural(self.ranks, "rank"))

    def titled(self, subject: str) -> str:
        """Return the title with another subject instead of the ranks."""
        what = f"{self.collective}, {subject}, {self.dtype or 'bytes'}"
        own = (word.removeprefix(f"simulated on {self.network}, ") for word in self.conditions)
        return (f"SIMULATED on {self.network}: " if self.network else "") + ", ".join((what, *own))


def grouped(records: Iterable[Record], kind: str) -> dict[Group, list[Record]]:
    """Return the records of a kind by group, ascending by size within each."""
    groups: dict[Group, list[Record]] = {}
    for record in sorted(records, key=lambda one: one["message_bytes"] or 0):
        if record.get("kind") == kind:
            dtype, network = (str(record.get(name) or "") for name in ("dtype", "network"))
            given = settings(record)
            own = [f"{key}={label(given[key])}" for key in ("backend", "threads") if key in given]
            conditions = (*words(record).values(), *own)
            group = Group(str(record["collective"] or kind), int(record["ranks"]), dtype, network, conditions)
            groups.setdefault(group, []).append(record)
    return dict(sorted(groups.items(), key=lambda one: (one[0].network, one[0].collective, one[0].ranks)))


def sizes(rows: Sequence[Record]) -> dict[int, list[Record]]:
    """Return the records of a group by size, ascending."""
    found: dict[int, list[Record]] = {}
    for record in rows:
        found.setdefault(record["message_bytes"] or 0, []).append(record)
    return found


def correct(records: Iterable[Record]) -> list[Record]:
    """Return the records with a time and without a wrong result, the fastest first."""
    kept = [one for one in records if one["time_p50_seconds"] and one["correct"] is not False]
    return sorted(kept, key=lambda one: one["time_p50_seconds"])


def place(record: Record, peers: Sequence[Record]) -> str:
    """Return ``fastest``, or ``tied`` with it, among the records of one size; empty for all others.

    Measured times tie when their intervals overlap; simulated ones have no noise and tie when equal.
    """
    ordered = correct(peers)
    if len(ordered) > 1 and not ordered[0].get("network") and ordered[0]["time_p50_high_seconds"] is None:
        return ""  # without an interval no difference is known
    tied = [one for one in ordered if _ties(ordered[0], one)]
    if not any(one is record for one in tied):
        return ""
    return TIED if len(tied) > 1 else BEST if len(ordered) > 1 else ""


def _ties(first: Record, other: Record) -> bool:
    if first.get("network"):
        return math.isclose(first["time_p50_seconds"], other["time_p50_seconds"], rel_tol=1e-6)
    low = other["time_p50_low_seconds"]
    return low is None or bool(low <= first["time_p50_high_seconds"])
