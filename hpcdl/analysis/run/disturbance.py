"""Disturbance of a case from outside the job: time that the hypervisor took, and the limits of a fair time.

**Steal time** is the time in which the hypervisor ran other machines while a rank had work.

A case is **disturbed**, and gives no verdict, if a rank lost so much that its times are biased: other processes
took more than :data:`FOREIGN` of a core from it (their CPU time on its cores, less that of cores that the case
leaves idle, less the error of the kernel's sampling), or the hypervisor more than :data:`STEAL` of its time.

Ranks of the same job are never foreign; ranks that share cores have a warning of their own. Load, involuntary
context switches, frequencies and retransmissions are recorded and are no cause: they also change with the job's
own work, and a slow clock or a bad link is a finding about the machine.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.trace.recorder import Rows

FOREIGN: Final = 0.05
"""Share of one core."""
STEAL: Final = 0.10
"""Share of a rank's time; idle virtual machines lose 3 to 7 %."""
NOTED_STEAL: Final = 0.02
"""Share of a rank's time from which on a report mentions it."""
MIN_STEAL_NS: Final = 5e7
"""Less steal time counts as none: the counter's unit is 10 ms."""


class Disturbance(NamedTuple):
    """Time that was taken from the ranks of one case."""

    stolen: float = 0.0
    """Share of the time of the rank from which the hypervisor took most."""
    cause: str | None = None
    """Cause and extent if the case is disturbed."""


def disturbance(ranks: Mapping[str, Rows]) -> Disturbance:
    """Return the disturbance of one case; ``ranks``: columns of the trace's table ``ranks``, perhaps none."""
    if not len(ranks.get("wall_ns", ())):
        return Disturbance()
    known = (ranks["wall_ns"] > 0) & (ranks["foreign_ns"] >= 0)
    wall = np.where(known, ranks["wall_ns"], 1)
    taken = ranks["foreign_ns"] / wall - ranks["idle_cores"]
    foreign = known & (taken - ranks["foreign_error_ns"] / wall > FOREIGN)
    # a rank that sleeps loses no more than what was taken while it had work
    time = np.maximum(ranks["wall_ns"], ranks["busy_ns"] + ranks["steal_ns"])
    stolen = np.where(ranks["steal_ns"] >= MIN_STEAL_NS, ranks["steal_ns"] / np.maximum(time, 1), 0.0)
    causes = []
    if foreign.any():
        rank = int(np.argmax(np.where(foreign, taken, -np.inf)))
        switches = ranks["involuntary_switches"][rank] / (ranks["wall_ns"][rank] / 1e9)
        causes.append(
            f"other processes took {taken[rank]:.2f} cores from rank {ranks['rank'][rank]}{_more(foreign)} "
            f"(limit {FOREIGN:g}; {switches:.0f} involuntary context switches/s, load {ranks['load'][rank]:.1f})"
        )
    if stolen.max() > STEAL:
        rank = int(np.argmax(stolen))
        causes.append(
            f"the hypervisor took {100 * stolen[rank]:.0f} % of the time of rank {ranks['rank'][rank]}"
            f"{_more(stolen > STEAL)} (limit {100 * STEAL:g} %)"
        )
    return Disturbance(float(stolen.max()), "; ".join(causes) or None)


def _more(ranks: npt.NDArray[np.bool_]) -> str:
    others = int(ranks.sum()) - 1
    return f" and {others} more" if others else ""
