"""Single operations, grouped by comparability, and the fastest of each group."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.disturbance import correction
from hpcdl.analysis.run.record_fields import label, settings, words
from hpcdl.analysis.statistics.differences import ALPHA, adjusted, difference
from hpcdl.report.formats.cells import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcdl.analysis.run.scaling import Record


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
    for record in sorted(records, key=lambda record: record["message_bytes"] or 0):
        if record.get("kind") == kind:
            dtype, network = (str(record.get(name) or "") for name in ("dtype", "network"))
            given = settings(record)
            own = [f"{key}={label(given[key])}" for key in ("backend", "threads") if key in given]
            conditions = (*words(record).values(), *own)
            group = Group(str(record["collective"] or kind), int(record["ranks"]), dtype, network, conditions)
            groups.setdefault(group, []).append(record)
    return dict(
        sorted(groups.items(), key=lambda record: (record[0].network, record[0].collective, record[0].ranks))
    )


def sizes(rows: Sequence[Record]) -> dict[int, list[Record]]:
    """Return the records of a group by size, ascending."""
    by_size: dict[int, list[Record]] = {}
    for record in rows:
        by_size.setdefault(record["message_bytes"] or 0, []).append(record)
    return by_size


def ranked(records: Iterable[Record]) -> list[Record]:
    """Return the records with a time, undisturbed and without a wrong result, the fastest first."""
    kept = [record for record in records if record["time_p50_seconds"] and record["correct"] is not False]
    return sorted(
        (record for record in kept if not record.get("disturbed")), key=lambda one: one["time_p50_seconds"]
    )


def place(record: Record, peers: Sequence[Record]) -> str:
    """Return ``fastest``, or ``tied`` with it, among the records of one size; empty for all others.

    Measured times tie if a test of their launches does not tell them apart. One launch is inconclusive: then no
    record has a place. Simulated times have no noise and tie when equal.
    """
    ordered = ranked(peers)
    if len(ordered) < 2 or not any(one is record for one in ordered):
        return ""
    first, *others = ordered
    if not first.get("network") and len(first["launch_seconds"]) < 2:
        return ""
    tied = _equal(first, others) if first.get("network") else _untold(first, others)
    if record is first:
        return TIED if tied else BEST
    return TIED if any(one is record for one in tied) else ""


def _equal(first: Record, others: Sequence[Record]) -> list[Record]:
    time = first["time_p50_seconds"]
    return [other for other in others if math.isclose(time, other["time_p50_seconds"], rel_tol=1e-6)]


def _untold(first: Record, others: Sequence[Record]) -> list[Record]:
    """Return the records that Welch's test, adjusted for their number, does not find slower than ``first``.

    If the hypervisor took more time from a record than from ``first``, its corrected time is tested.
    """
    stolen = first["stolen"]
    times = [
        np.log(other["launch_seconds"]) - max(0.0, np.log(correction(stolen, other["stolen"]))) for other in others
    ]
    test = difference([np.log(first["launch_seconds"])] * len(others), times)
    known = [len(time) > 1 for time in times]
    slower = (adjusted(np.where(known, test.p, np.nan)) < ALPHA) & (test.value > 0)
    return [other for other, is_slower in zip(others, slower, strict=True) if not is_slower]
