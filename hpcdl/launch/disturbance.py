"""Counters of a rank and its cores during a case: CPU time of other processes, steal time, preemptions and more.

Counters are read when a case begins and when it ends, never in between, and without other libraries. Each rank
returns its :class:`Usage`; rank 0 compares those of all ranks, since ranks of the job may share cores. Values that
a machine or container does not tell are -1.
"""

import math
import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from hpcdl.fabric.mpi.backoff import Place, here
from hpcdl.launch import machine
from hpcdl.launch.health import Health
from hpcdl.launch.machine import ROOT
from hpcdl.launch.placement import core_numbers

UNKNOWN: Final = -1
TICK_NS: Final = 10**9 // os.sysconf("SC_CLK_TCK")
"""Unit of /proc/stat; the kernel finds the busy time by a sample per tick."""


class Sample(NamedTuple):
    """Counters of this process and of its cores at one moment."""

    time_ns: int
    cpu_ns: int
    involuntary_switches: int
    busy_ns: int
    """CPU time of all processes on the cores, without interrupts."""
    steal_ns: int
    """Time in which the hypervisor ran other machines on the cores."""
    retransmissions: int
    """TCP segments that the host sent again."""
    load: float
    """Mean number of runnable threads of the machine in the last minute."""


class Usage(NamedTuple):
    """Use of a rank's cores during a case."""

    place: Place
    """Machine and cores, with the hardware threads that share them."""
    physical_cores: int
    threads: int
    """Threads that the rank computes with; 0 if it is not in the case."""
    begin: Sample
    end: Sample
    health: Health | None = None
    """Health of the node, of its first rank; None of others."""

    def grown(self, name: str) -> int:
        """Return the growth of a counter during the case."""
        before, after = getattr(self.begin, name), getattr(self.end, name)
        return UNKNOWN if UNKNOWN in {before, after} else max(0, after - before)


class Counters:
    """Counters of this process and of the cores that it may use."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        place, cpus = here(), root / "sys/devices/system/cpu"
        listed = {core: machine.text(cpus / f"cpu{core}/topology/thread_siblings_list") for core in place.cores}
        siblings = {frozenset({core} | core_numbers(text)) for core, text in listed.items()}
        self._place = Place(place.machine, frozenset().union(*siblings))
        self._physical_cores = len(siblings)

    def sample(self) -> Sample:
        """Read the counters."""
        now = time.perf_counter_ns()
        used = resource.getrusage(resource.RUSAGE_SELF)
        busy, steal = _core_times(machine.text(self._root / "proc/stat"), self._place.cores)
        return Sample(
            now,
            round((used.ru_utime + used.ru_stime) * 1e9),
            used.ru_nivcsw,
            busy,
            steal,
            int(machine.tcp_counters(self._root).get("RetransSegs", UNKNOWN)),
            _load(machine.text(self._root / "proc/loadavg")),
        )

    def usage(self, begin: Sample, threads: int) -> Usage:
        """Return the use of the cores since ``begin``."""
        return Usage(self._place, self._physical_cores, threads, begin, self.sample())


def columns(usages: Sequence[Usage]) -> list[dict[str, float]]:
    """Return the columns of the trace's table ``ranks`` for each rank, from the usages of all ranks of the job.

    ``foreign_ns`` is the CPU time on a rank's cores less that of all ranks that may use these cores.
    ``idle_cores`` is the number of these cores that ranks of the case leave free for other processes.
    """
    users = defaultdict[tuple[str, int], set[int]](set)
    for rank, usage in enumerate(usages):
        for core in usage.place.cores:
            users[usage.place.machine, core].add(rank)

    @cache
    def sharing(place: Place) -> tuple[int, int]:
        """Return CPU time and threads of the ranks that may use the cores of ``place``."""
        ranks = set[int]().union(*(users[place.machine, core] for core in place.cores))
        of_ranks = [usages[rank] for rank in ranks]
        return sum(usage.grown("cpu_ns") for usage in of_ranks), sum(usage.threads for usage in of_ranks)

    return [_columns(usage, *sharing(usage.place)) for usage in usages]


def _columns(usage: Usage, cpu_ns: int, threads: int) -> dict[str, float]:
    """``cpu_ns`` and ``threads``: of all ranks that may use the same cores."""
    wall, busy, cores = usage.grown("time_ns"), usage.grown("busy_ns"), len(usage.place.cores)
    foreign = error = UNKNOWN
    if busy > 0 or (busy == 0 and cpu_ns < TICK_NS):  # some sandboxes have a /proc/stat that does not count
        foreign = max(0, busy - cpu_ns)
        share = min(1.0, busy / max(1, wall * cores))
        ticks = math.sqrt(wall * cores / TICK_NS * share * (1 - share)) + math.sqrt(cores)
        error = round(3 * TICK_NS * ticks)  # three standard deviations of a sampled busy time
    return {
        "wall_ns": wall,
        "busy_ns": busy,
        "foreign_ns": foreign,
        "foreign_error_ns": error,
        "idle_cores": max(0, usage.physical_cores - threads),
        "steal_ns": usage.grown("steal_ns"),
        "involuntary_switches": usage.grown("involuntary_switches"),
        "load": usage.end.load,
        "retransmissions": usage.grown("retransmissions"),
    }


def _core_times(stat: str, cores: Iterable[int]) -> tuple[int, int]:
    """Return busy and steal time (ns) of all ``cores``; unknown if a core is not in /proc/stat."""
    busy = steal = 0
    lines = {line.partition(" ")[0]: line.split()[1:9] for line in stat.splitlines() if line.startswith("cpu")}
    for core in cores:
        ticks = [int(count) for count in lines.get(f"cpu{core}", ()) if count.isdecimal()]
        if len(ticks) < 8:
            return UNKNOWN, UNKNOWN
        busy += sum(ticks[:3])  # user, nice, system
        steal += ticks[7]
    return busy * TICK_NS, steal * TICK_NS


def _load(loadavg: str) -> float:
    try:
        return float(loadavg.split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return float(UNKNOWN)
