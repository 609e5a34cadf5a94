"""Cores that ranks may use, and numbers of ranks that are more than these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hpcdl.analysis.run.record import Record
from hpcdl.trace.run import Run

UNKNOWN: Final = "unknown"
"""In an environment, in the place of a fact."""


def facts(environment: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a table of an environment; empty if it is unknown."""
    value = environment.get(name)
    return value if isinstance(value, dict) else {}


def oversubscribed(run: Run, records: Sequence[Record]) -> dict[int, int]:
    """Numbers of ranks that share cores, to the cores that they want of the fullest node."""
    cores = usable_cores(run.environment)
    worst: dict[int, int] = {}
    for record in records:
        if cores is None or record.network or record.kind == "replay":
            continue  # simulated, or asleep where others compute
        environment = run.environments.get(str(record.environment_key), run.environment)
        machines = 1 if environment.get("emulated") else record.nodes or 1
        per_node = -(-record.ranks // machines)
        threads = record.threads_per_rank
        wanted = per_node * (threads if isinstance(threads, int) else 1)
        if wanted > cores:
            worst[record.ranks] = max(wanted, worst.get(record.ranks, 0))
    return worst


def usable_cores(environment: Mapping[str, Any]) -> float | None:
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
