"""Absolute floor of an archive: bus bandwidth by the nominal rate of the link, without a baseline.

Judged is the best algorithm of each collective and number of ranks on several nodes, at its largest size. If it is
far below the rate, messages take another way, such as a management network, whatever the algorithm.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hpcdl.analysis.over_time.change_points import AFTER
from hpcdl.analysis.run.scaling import bus_factor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.analysis.over_time.history import History


FLOOR: Final = 0.1
"""Share of the nominal rate."""
LEAST_BYTES: Final = 1 << 20
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
        float(found[1]) * UNITS[found[2]]
        for kind in cards
        if isinstance(kind, dict)
        for card in kind.values()
        if card.get("driver") not in VIRTUAL
        and re.search("up|ACTIVE", str(card.get("state")))
        and (found := re.match(r"([\d.]+) (Gb/sec|Mbit/s)", str(card.get("rate"))))
    ]
    return max(rates, default=None)


def below_floor(history: History) -> list[BelowFloor]:
    """Return the collectives whose best algorithm stayed below the floor for three runs, once per stay."""
    nominal = [nominal_rate(job.environment) for job in history.jobs]
    return [one for rows in _groups(history) for one in _stays(history, rows, nominal)]


def _groups(history: History) -> list[list[int]]:
    """Return the series of each collective, number of ranks and environment at its largest size."""
    groups: dict[tuple[str, int, str], dict[int, list[int]]] = {}
    for row, key in enumerate(history.keys):
        case = history.case(row)
        if case.nodes > 1 and (case.message_bytes or 0) >= LEAST_BYTES and bus_factor(case.collective, case.ranks):
            sizes = groups.setdefault((case.collective, case.ranks, key.environment_key), {})
            sizes.setdefault(case.message_bytes or 0, []).append(row)
    return [sizes[max(sizes)] for sizes in groups.values()]


def _stays(history: History, rows: list[int], nominal: list[float | None]) -> list[BelowFloor]:
    case = history.case(rows[0])
    moved = (case.message_bytes or 0) * (bus_factor(case.collective, case.ranks) or 0.0)
    times = history.seconds[rows]
    found: list[BelowFloor] = []
    low: list[int] = []
    for run in np.flatnonzero(np.isfinite(times).any(axis=0)).tolist():
        best = int(np.nanargmin(times[:, run]))
        rate, link = moved / float(times[best, run]), nominal[run]
        low = [*low, run] if link is not None and rate < FLOOR * link else []
        if not low and found:
            found[-1] = found[-1]._replace(open=False)
        if link is not None and len(low) == AFTER:
            found.append(BelowFloor(rows[best], low[0], run, rate, link))
    return found
