"""Check that the ranks of every case fit into the memory of their nodes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from hpcdl.launch.machine import node_memory_bytes, shortage
from hpcdl.launch.testbed_settings import emulated

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from hpcdl.suite import Case

PROCESS_BYTES: Final = 60_000_000
"""Memory of an idle rank: Python, numpy and MPI."""


def lack_of_memory(cases: Sequence[Case], hosts: Sequence[Hashable]) -> str | None:
    """Return one line if the ranks of the job or of a case do not fit into a node's memory; None if all fit.

    ``hosts`` has the host of each rank, in order of ranks.
    """
    fullest = len(hosts) if emulated() else max(Counter(hosts).values())
    if (line := shortage(PROCESS_BYTES, fullest, node_memory_bytes())) is not None:
        return f"{fullest} processes: {line} on a node"
    for case in cases:
        taken = hosts[: case.processes]
        most = len(taken) if emulated() else max(Counter(taken).values())  # emulated hosts share a node
        if (line := shortage(case.module.memory_bytes(case.spec), most, node_memory_bytes())) is not None:
            return f"case {case.name!r}: {line} on a node"
    return None
