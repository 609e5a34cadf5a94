"""Limits beyond which a case counts as disturbed from outside the job.

Two causes count. **Foreign CPU time**: other processes took more than :data:`FOREIGN` of a core from a rank: their
CPU time on its cores, less that of cores that the case leaves idle, less the error of the kernel's sampling.
**Steal time**: the hypervisor took more than :data:`STEAL` of the time in which a rank's cores had work.

Ranks of the same job are never foreign; ranks that share cores have a warning of their own. Load, involuntary
context switches, frequencies and retransmissions are recorded and are no cause: they also change with the job's
own work, and a slow clock or a bad link is a finding about the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

FOREIGN: Final = 0.05
"""Share of one core."""
STEAL: Final = 0.02
"""Share of the busy time of a rank's cores,"""
LEAST_STEAL_NS: Final = 5e7
"""if it is at least this long: the counter's unit is 10 ms."""


def disturbance(ranks: Mapping[str, npt.NDArray[Any]]) -> str | None:
    """Return which rank was disturbed most, by what and how much; None for an undisturbed or unrecorded case.

    ``ranks``: columns of the trace's table ``ranks`` for one case.
    """
    if not len(ranks.get("wall_ns", ())):
        return None
    known = (ranks["wall_ns"] > 0) & (ranks["foreign_ns"] >= 0)
    wall = np.where(known, ranks["wall_ns"], 1)
    taken = ranks["foreign_ns"] / wall - ranks["idle_cores"]
    foreign = known & (taken - ranks["foreign_error_ns"] / wall > FOREIGN)
    wanted = ranks["busy_ns"] + ranks["steal_ns"]
    stolen = ranks["steal_ns"] / np.where(wanted > 0, wanted, np.inf)
    steal = (stolen > STEAL) & (ranks["steal_ns"] >= LEAST_STEAL_NS)
    causes = []
    if foreign.any():
        rank = int(np.argmax(np.where(foreign, taken, -np.inf)))
        switches = ranks["involuntary_switches"][rank] / (ranks["wall_ns"][rank] / 1e9)
        causes.append(
            f"other processes took {taken[rank]:.2f} cores from rank {ranks['rank'][rank]}{_more(foreign)} "
            f"(limit {FOREIGN:g}; {switches:.0f} involuntary context switches/s, load {ranks['load'][rank]:.1f})"
        )
    if steal.any():
        rank = int(np.argmax(np.where(steal, stolen, -np.inf)))
        causes.append(
            f"the hypervisor took {100 * stolen[rank]:.0f} % of the core time of rank {ranks['rank'][rank]}"
            f"{_more(steal)} (limit {100 * STEAL:g} %)"
        )
    return "; ".join(causes) or None


def _more(ranks: npt.NDArray[np.bool_]) -> str:
    others = int(ranks.sum()) - 1
    return f" and {others} more" if others else ""
