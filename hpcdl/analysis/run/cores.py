"""Facts of an environment: cores that ranks may use and want, and the job."""

from collections.abc import Iterator, Sequence
from typing import Final

from hpcdl.analysis.run.record import Record
from hpcdl.trace.files import JsonMapping, JsonObject
from hpcdl.trace.run import Run

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
    """Return the cores that a case wants of its fullest node; 0 for a simulated one, or a replay, which sleeps."""
    if record.network or record.kind == "replay":
        return 0
    environment = run.environment_with(record.environment_key)
    machines = 1 if environment.get("emulated") else record.nodes or 1
    return -(-record.ranks // machines) * (record.threads_per_rank or 1)


def marked(run: Run, records: Sequence[Record]) -> list[Record]:
    """Set whether the hosts of each record are emulated, and its ranks share cores; return the records."""
    cores = usable_cores(run.environment)
    for record in records:
        environment = run.environment_with(record.environment_key)
        record.emulated = bool(environment.get("emulated")) and not record.network
        record.oversubscribed = None if cores is None else wanted(run, record) > cores
    return list(records)


def usable_cores(environment: JsonMapping) -> float | None:
    """Cores on the poorest node: those in its ranks' affinities, at most the physical ones and the quota."""
    cpu = facts(environment, "cpu")
    limits = [float(cpu[name]) for name in ("physical_cores", "quota_cores") if cpu.get(name, UNKNOWN) != UNKNOWN]
    nodes: dict[str, set[int]] = {}
    for rank in environment.get("ranks") or []:
        node = rank["slurm_node"] if rank.get("slurm_node", UNKNOWN) != UNKNOWN else rank.get("hostname")
        nodes.setdefault(str(node), set()).update(_numbers(rank.get("affinity", "")))
    limits += [float(len(cores)) for cores in nodes.values() if cores]
    return min(limits, default=None)


def _numbers(ranges: str) -> Iterator[int]:
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
