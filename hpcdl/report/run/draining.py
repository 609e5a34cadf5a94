"""Commands by which slow hosts are left out of a job, or drained, in Slurm."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from hpcdl.analysis.over_time.suspects import host_list
from hpcdl.analysis.run.disturbance import UNKNOWN, slurm_job
from hpcdl.analysis.run.record import group_by_key
from hpcdl.trace.files import JsonMapping

OF_SLOW_HOSTS: Final = {"host": "links take", "node": "own work takes"}
"""Beginnings of reasons, by the kind of slowness."""


class SlowHost(NamedTuple):
    """A host that a command names as slow."""

    name: str
    reason: str
    """In a few words, without quotes, for the administrator who reads ``sinfo -R``."""


def slurm_commands(slow: Sequence[SlowHost], environment: JsonMapping) -> list[str]:
    """Return the option that leaves the hosts out, and a command per host that drains it; none outside Slurm.

    ``environment``: that of the run, which has the node of each host. Options and states: sbatch(1), scontrol(1).
    """
    if not slow or not slurm_job(environment):
        return []
    nodes: dict[str, str] = {}
    for rank in environment.get("ranks") or ():
        host, node = str(rank.get("hostname", "")), str(rank.get("slurm_node", UNKNOWN))
        nodes[host] = host.partition(".")[0] if node == UNKNOWN else node
    reasons = group_by_key((nodes.get(entry.name, entry.name), entry.reason) for entry in slow)
    lines = [f"sbatch --exclude={host_list(reasons)}"]
    for node, of_node in reasons.items():
        lines.append(f'scontrol update NodeName={node} State=DRAIN Reason="hpcdl: {"; ".join(of_node)}"')
    return lines


def sentences(slow: Sequence[SlowHost], environment: JsonMapping) -> list[str]:
    """Return the commands as sentences of a page."""
    exclude, *drains = slurm_commands(slow, environment) or [""]
    if not exclude:
        return []
    lines = [f"Slurm leaves {'them' if len(drains) > 1 else 'it'} out with: {exclude}"]
    return lines + [f"Slurm drains it with: {command}" for command in drains]
