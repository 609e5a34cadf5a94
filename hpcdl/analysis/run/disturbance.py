"""Doubts about the times of a case: ranks that share cores, and disturbance from outside the job.

**Steal time** is the time in which the hypervisor ran other machines while a rank had work.

A case is **disturbed**, and gives no verdict, if a rank lost so much that its times are biased: other processes
took more than :data:`FOREIGN` of a core from it (their CPU time on its cores, less that of cores that the case
leaves idle, less the error of the kernel's sampling), or the hypervisor more than :data:`STEAL` of its time.

Ranks of the same job are never foreign; ranks that share cores have a warning of their own. Load, involuntary
context switches, frequencies and retransmissions are recorded and are no cause: they also change with the job's
own work, and a slow clock or a bad link is a finding about the machine.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.run.record import Record
from hpcdl.trace.files import JsonMapping, JsonObject
from hpcdl.trace.recorder import Rows
from hpcdl.trace.run import Run

FOREIGN: Final = 0.05
"""Share of one core."""
STEAL: Final = 0.10
"""Share of a rank's time; idle virtual machines lose 3 to 7 %."""
NOTED_STEAL: Final = 0.02
"""Share of a rank's time from which on a report mentions it."""
SHARED: Final = 0.75
"""Share of a rank's cores that is busy from which on ranks wait for cores."""
MIN_STEAL_NS: Final = 5e7
"""Less steal time counts as none: the counter's unit is 10 ms."""


class Disturbance(NamedTuple):
    """Time that was taken from the ranks of one case."""

    stolen: float = 0.0
    """Share of the time of the rank from which the hypervisor took most."""
    cause: str | None = None
    busy_cores: float | None = None
    """Cores that were busy, of those that a rank may use; mean over ranks. None: unknown."""


def disturbance(ranks: Rows) -> Disturbance:
    """Return the disturbance of one case; ``ranks``: rows of the trace's table ``ranks``, perhaps none."""
    if not len(ranks):
        return Disturbance()
    measured = (ranks["wall_ns"] > 0) & (ranks["foreign_ns"] >= 0)
    wall = np.where(measured, ranks["wall_ns"], 1)
    taken = ranks["foreign_ns"] / wall - ranks["idle_cores"]
    foreign = measured & (taken - ranks["foreign_error_ns"] / wall > FOREIGN)
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
    busy = float((ranks["busy_ns"] / wall).mean()) if measured.all() else None
    return Disturbance(float(stolen.max()), "; ".join(causes) or None, busy)


def _more(ranks: npt.NDArray[np.bool_]) -> str:
    others = int(ranks.sum()) - 1
    return f" and {others} other rank{'s' * (others > 1)}" if others else ""


UNKNOWN: Final = "unknown"
"""In an environment, in the place of a fact."""


def facts(environment: JsonMapping, name: str) -> JsonObject:
    """Return a table of an environment; empty if it is unknown."""
    value = environment.get(name)
    return value if isinstance(value, dict) else {}


def slurm_job(environment: JsonMapping) -> str | None:
    """Return the number of the Slurm job, ``JOB_TASK`` in a job array; None without one."""
    variables = facts(environment, "variables")
    array, task = (variables.get(f"SLURM_ARRAY_{word}_ID") for word in ("JOB", "TASK"))
    return f"{array}_{task}" if array else variables.get("SLURM_JOB_ID")


def wanted(run: Run, record: Record) -> int:
    """Return the cores that a case wants of its fullest node; 0 for a simulated one, or a replay, which sleeps.

    Emulated hosts share the cores of one machine, unless they work one after the other.
    """
    if record.network or record.kind == "replay":
        return 0
    environment = run.environment_with(record.environment_key)
    is_shared = environment.get("emulated") and record.pattern != "alone"
    machines = 1 if is_shared else record.nodes or 1
    return -(-record.ranks // machines) * (record.threads_per_rank or 1)


def marked(run: Run, records: Sequence[Record]) -> list[Record]:
    """Set whether the hosts of each record are emulated, and its ranks share cores; return the records.

    Ranks that mostly sleep or wait hardly share the cores that they have in common: see :data:`SHARED`.
    """
    cores = usable_cores(run.environment)
    for record in records:
        environment = run.environment_with(record.environment_key)
        record.emulated = bool(environment.get("emulated")) and not record.network
        wants = cores is not None and wanted(run, record) > cores
        record.oversubscribed = None if cores is None else wants and not _has_idle_cores(environment, record)
    return list(records)


def _has_idle_cores(environment: JsonMapping, record: Record) -> bool:
    own = (len(set(_numbers(rank.get("affinity", "")))) for rank in environment.get("ranks") or [])
    return record.busy_cores is not None and record.busy_cores < SHARED * min(filter(None, own), default=0)


def usable_cores(environment: JsonMapping) -> float | None:
    """Cores on the poorest node: those in its ranks' affinities, at most the physical ones and the quota."""
    cpu = facts(environment, "cpu")
    limits = [float(cpu[name]) for name in ("physical_cores", "quota_cores") if cpu.get(name, UNKNOWN) != UNKNOWN]
    nodes: dict[str, set[int]] = {}
    for rank in environment.get("ranks") or []:
        node = rank["slurm_node"] if rank.get("slurm_node", UNKNOWN) != UNKNOWN else rank.get("hostname")
        node = "" if environment.get("emulated") else node  # their hosts are one machine
        nodes.setdefault(str(node), set()).update(_numbers(rank.get("affinity", "")))
    limits += [float(len(cores)) for cores in nodes.values() if cores]
    return min(limits, default=None)


def _numbers(ranges: str) -> Iterator[int]:
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
