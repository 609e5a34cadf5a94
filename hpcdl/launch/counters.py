"""Counters of ranks and nodes during a case: CPU time of other processes, steal time, health of devices.

They are read when a case begins and when it ends, never in between. Each rank returns its :class:`Usage`; rank 0
compares those of all ranks, since ranks of the job may share cores. Values of a rank that a machine or container
does not tell are -1.

The first rank of each node reads the sensors of its :class:`Health`. GPUs are read through NVML (``nvidia-ml-py``,
if it is installed), processors from sysfs. A sensor that a node lacks, or that the process may not read, is left
out; a GPU that does not answer because it is broken has an error. No sensor raises.
"""

import math
import os
import re
import resource
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from hpcdl.fabric.mpi.backoff import Place, here
from hpcdl.launch import machine
from hpcdl.launch.machine import ROOT, core_numbers
from hpcdl.trace.recorder import Scalar

Kind = Literal["energy", "slowed", "throttled", "errors"]
"""Units: mJ of GPUs and uJ of processors, ns, events, errors."""

FIELDS: Final[dict[int, tuple[Kind, str]]] = {
    4: ("errors", "uncorrected ECC errors"),
    38: ("errors", "NVLink CRC errors of flits"),
    45: ("errors", "NVLink CRC errors of data"),
    52: ("errors", "NVLink replays"),
    59: ("errors", "NVLink recoveries"),
    83: ("energy", "GPUs"),
    160: ("errors", "NVLink ECC errors"),
}
"""Counters of a GPU that one call reads, by number of the field (nvml.h, NVML_FI_DEV_*).

Versions of NVML number the fields of slowdowns differently: these times are asked for by a function of their own.
"""
THERMAL: Final = 1
"""Reason for slow clocks of which NVML counts the time (nvml.h, nvmlPerfPolicyType_t)."""
REASONS: Final = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of the clocks' event reasons that tell of a defect (nvml.h, nvmlClocksEventReason*).

The others are usual: idle, clocks set by a user, clocks of a group, and the power limit, which a busy GPU reaches.
"""
BROKEN: Final = {
    8: "has no power cable",
    11: "has an interrupt problem",
    15: "is lost: it has fallen off the bus",
    16: "needs a reset",
}
"""Codes of errors that tell of a broken GPU (nvml.h, nvmlReturn_t); it remains broken while a job runs."""
VALUES: Final = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}
"""Members of NVML's union of values, by type."""
MIN_SHARE: Final = 0.01
"""Share of the case from which on a clock that was slowed down for a known time counts as throttled."""
MAX_WATTS: Final = 600
"""No processor draws more for long: in a longer case its counter may have wrapped more than once."""
STILL_NS: Final = 1_000_000
"""Time from which on a counter of energy that stands still is not read: processors count each millisecond."""
SHOWN: Final = 3
"""Hosts that a text names."""


class Sensor(NamedTuple):
    """A counter of a node."""

    kind: Kind
    device: str
    name: str


class Reading(NamedTuple):
    """Sensors of a node at one moment."""

    time_ns: int
    counters: dict[Sensor, int]
    active: dict[str, list[str]]
    """Reasons for which clocks are slowed down now, by GPU."""


class Health(NamedTuple):
    """Health of a node during a case."""

    throttled: list[str]
    errors: list[str]
    joules: dict[str, float]
    """By kind of device; a kind is missing unless all of its devices were read."""


class Sensors:
    """Sensors of a node. ``nvml``: the module ``pynvml``; None: it is imported if the node has NVIDIA GPUs."""

    def __init__(self, root: Path = ROOT, nvml: Any = None) -> None:
        cpus = root / "sys/devices/system/cpu"
        self._zones = _energy_zones(root)
        self._files = _throttle_files(cpus) | {zone: [file] for zone, (file, _) in self._zones.items()}
        self._nvml, count = _open_gpus(root, nvml)
        self._broken: dict[str, str] = {}
        names = [f"GPU {number}" for number in range(count)]
        self._gpus = {gpu: self._ask(gpu, "HandleByIndex", number) for number, gpu in enumerate(names)}

    def read(self) -> Reading:
        """Read the sensors: a file per physical core, two per processor, and three calls per GPU."""
        counters: dict[Sensor, int] = {}
        active: dict[str, list[str]] = {}
        for sensor, files in self._files.items():
            texts = [machine.text(file) for file in files]
            if all(map(str.isdecimal, texts)):
                counters[sensor] = sum(map(int, texts))
        for gpu, handle in self._gpus.items():
            if handle is None:
                continue
            answers = self._ask(gpu, "FieldValues", handle, list(FIELDS)) or ()
            for (kind, name), answer in zip(FIELDS.values(), answers, strict=False):
                if answer.nvmlReturn == 0 and answer.valueType in VALUES:
                    counters[Sensor(kind, gpu, name)] = getattr(answer.value, VALUES[answer.valueType])
            if (violation := self._ask(gpu, "ViolationStatus", handle, THERMAL)) is not None:
                counters[Sensor("slowed", gpu, "thermal slowdown")] = violation.violationTime
            bits = self._ask(gpu, "CurrentClocksEventReasons", handle) or 0
            active[gpu] = [reason for bit, reason in REASONS.items() if bits & bit]
        return Reading(time.perf_counter_ns(), counters, active)

    def _ask(self, gpu: str, question: str, *arguments: Any) -> Any:
        """Return the answer of an NVML function; None if library, driver, GPU or rights do not allow it."""
        try:
            return getattr(self._nvml, f"nvmlDeviceGet{question}")(*arguments)
        except AttributeError:
            return None
        except self._nvml.NVMLError as error:
            if (code := getattr(error, "value", None)) in BROKEN:
                self._broken[gpu] = BROKEN[code]
            return None

    def health(self, begin: Reading) -> Health:
        """Return the health since ``begin``. A counter that began again tells nothing."""
        end = self.read()
        passed = max(1, end.time_ns - begin.time_ns)
        throttled, errors = list[str](), [f"{gpu} {defect}" for gpu, defect in self._broken.items()]
        energies: dict[str, list[float]] = {"processors": [], "GPUs": []}
        for sensor in begin.counters.keys() & end.counters.keys():
            kind, device, name = sensor
            grown = end.counters[sensor] - begin.counters[sensor]
            if kind == "energy" and not grown and passed >= STILL_NS:
                continue
            if kind == "energy" and sensor in self._zones:
                _, greatest = self._zones[sensor]
                if passed * MAX_WATTS / 1e3 <= greatest:  # else it may have begun again more than once
                    energies[name].append(grown % greatest / 1e6)
            elif kind == "energy":
                energies[name] += [grown / 1e3] if grown >= 0 else []
            elif kind == "slowed" and grown > MIN_SHARE * passed:
                throttled.append(f"{device} {name} for {100 * min(1.0, grown / passed):.0f} % of the case")
            elif kind != "slowed" and grown > 0:
                (throttled if kind == "throttled" else errors).append(f"{device} {grown} {name}")
        throttled += [f"{gpu} {why[-1]} at the end" for gpu, why in end.active.items() if why]
        counts = {"processors": len(self._zones), "GPUs": len(self._gpus)}
        joules = {name: sum(each) for name, each in energies.items() if each and len(each) == counts[name]}
        return Health(sorted(throttled), sorted(errors), joules)


def _open_gpus(root: Path, nvml: Any) -> tuple[Any, int]:
    """Return NVML and the number of GPUs; 0 without NVIDIA's driver, the library or rights."""
    if not (root / "proc/driver/nvidia").is_dir():
        return None, 0
    if nvml is None:
        try:
            import pynvml
        except ImportError:
            return None, 0
        nvml = pynvml
    try:
        nvml.nvmlInit()
        return nvml, nvml.nvmlDeviceGetCount()
    except nvml.NVMLError:
        return None, 0


def _throttle_files(cpus: Path) -> dict[Sensor, list[Path]]:
    """Return the counters of thermal throttling: those of a processor's cores, and its own."""
    files: dict[Sensor, list[Path]] = {}
    for folder in cpus.glob("cpu[0-9]*"):  # some may be offline
        first = re.split("[,-]", machine.text(folder / "topology/thread_siblings_list"))[0]
        of_core = folder / "thermal_throttle/core_throttle_count"
        if first in {folder.name[3:], ""} and of_core.exists():
            processor = f"processor {machine.text(folder / 'topology/physical_package_id')}"
            files.setdefault(Sensor("throttled", processor, "thermal events of cores"), []).append(of_core)
            of_package = of_core.with_name("package_throttle_count")
            files.setdefault(Sensor("throttled", processor, "thermal events"), [of_package])
    return files


def _energy_zones(root: Path) -> dict[Sensor, tuple[Path, int]]:
    """Return counter and greatest value (uJ) of each processor and its memory; other zones overlap with them."""
    zones = {}
    for folder in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        name, greatest = machine.text(folder / "name"), machine.text(folder / "max_energy_range_uj")
        if name.startswith(("package", "dram")) and greatest.isdecimal():
            zones[Sensor("energy", folder.name, "processors")] = (folder / "energy_uj", int(greatest))
    return zones


def health_of_case(nodes: Mapping[str, Health], machines: Mapping[str, str]) -> dict[str, Scalar]:
    """Return the fields of a case.

    ``nodes``: by host; ``machines``: that of each host, as emulated hosts share one, whose energy counts once.
    """
    once = list({machines[host]: health for host, health in nodes.items()}.values())
    kinds = [kind for kind in ("processors", "GPUs") if once and all(kind in health.joules for health in once)]
    fields: dict[str, Scalar] = {
        "throttled": _named({host: health.throttled for host, health in nodes.items()}),
        "hardware_errors": _named({host: health.errors for host, health in nodes.items()}),
        "energy_joules": sum(health.joules[kind] for health in once for kind in kinds) if kinds else None,
        "energy_of": " and ".join(kinds) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _named(lines: Mapping[str, Sequence[str]]) -> str | None:
    """Return the lines of the first hosts that have any; None without."""
    hosts = [f"{host}: {', '.join(of_host)}" for host, of_host in lines.items() if of_host]
    more = [f"{len(hosts) - SHOWN} more"] if len(hosts) > SHOWN else []
    return "; ".join(hosts[:SHOWN] + more) or None


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
        load = re.match(r"\d+\.\d+", machine.text(self._root / "proc/loadavg"))
        return Sample(
            now,
            round((used.ru_utime + used.ru_stime) * 1e9),
            used.ru_nivcsw,
            busy,
            steal,
            int(machine.tcp_counters(self._root).get("RetransSegs", UNKNOWN)),
            float(load[0]) if load else UNKNOWN,
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
