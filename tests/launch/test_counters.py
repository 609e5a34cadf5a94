"""Counters of a rank, its cores and its node, from synthetic /proc and /sys and a library that stands for NVML."""

import json
import types

import numpy as np
import pytest

from hpcdl.analysis.run.disturbance import disturbance
from hpcdl.fabric.mpi import backoff
from hpcdl.launch import counters as counters_module
from hpcdl.launch.counters import TICK_NS, UNKNOWN, Counters, Health, Sample, Sensors, Usage, columns
from hpcdl.report.render import render
from hpcdl.report.run.declaration import badges
from hpcdl.report.run.findings import findings

SECOND = 10**9
TICKS = SECOND // TICK_NS


def stat(*cores):
    """/proc/stat of cores with (user, nice, system, idle, iowait, irq, softirq, steal) ticks."""
    lines = [f"cpu{number} {' '.join(map(str, ticks))} 0 0\n" for number, ticks in enumerate(cores)]
    return f"cpu  9 9 9 9 9 9 9 9 9 9\n{''.join(lines)}intr 7 7\n"


@pytest.fixture
def on_core_1(monkeypatch):
    monkeypatch.setattr(counters_module, "here", lambda: backoff.Place("m", frozenset([1])))


def usage(cores, *, cpu=0.0, busy=0.0, threads=1, wall=10.0, physical=None):
    """Use of ``cores`` in ``wall`` seconds: ``cpu`` seconds of the rank, ``busy`` of all processes."""
    begin = Sample(0, 0, 0, 0, 0, UNKNOWN, 1.0)
    end = begin._replace(time_ns=int(wall * SECOND), cpu_ns=int(cpu * SECOND), busy_ns=int(busy * SECOND))
    place = backoff.Place("m", frozenset(cores))
    return Usage(place, physical or len(place.cores), threads, begin, end)


@pytest.mark.usefixtures("on_core_1")
def test_counters_are_those_of_the_own_cores(tmp_path, put):
    put("proc/stat", stat((900,) * 8, (100, 20, 3, 4000, 50, 600, 700, 8)))
    put("proc/loadavg", "2.50 1.00 1.00 3/99 1234\n")
    put("proc/net/snmp", "Ip: A\nIp: 1\nTcp: OutSegs RetransSegs InErrs\nTcp: 900 17 0\n")
    found = Counters(tmp_path).sample()
    assert found.busy_ns == 123 * TICK_NS  # user, nice and system: interrupts may be for the rank's messages
    assert found.steal_ns == 8 * TICK_NS
    assert (found.load, found.retransmissions) == (2.5, 17)
    assert found.cpu_ns > 0


@pytest.mark.usefixtures("on_core_1")
@pytest.mark.parametrize(
    "text", ["", "garbage", "cpu 1 2\ncpu1 1 2 3\n", stat((1,) * 8), "cpu1 a b c d e f g h\n", "cpu1\n"]
)
def test_files_that_are_missing_or_strange_are_unknown(tmp_path, put, text):
    if text:
        for path in ("stat", "loadavg", "net/snmp"):
            put(f"proc/{path}", text)
    counters = Counters(tmp_path)
    begin = counters.sample()
    (found,) = columns([counters.usage(begin, threads=1)])
    unknown = {"busy_ns", "foreign_ns", "foreign_error_ns", "steal_ns", "load", "retransmissions"}
    assert {name for name, value in found.items() if value == UNKNOWN} == unknown
    assert found["wall_ns"] > 0


@pytest.mark.parametrize(("listed", "cores", "physical"), [("1,3", {1, 3}, 1), ("0-1", {0, 1}, 1), ("", {1}, 1)])
@pytest.mark.usefixtures("on_core_1")
def test_hardware_threads_of_one_core_belong_together(tmp_path, put, listed, cores, physical):
    put("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", listed)
    counters = Counters(tmp_path)
    found = counters.usage(counters.sample(), threads=1)
    assert (found.place.cores, found.physical_cores) == (cores, physical)


def test_foreign_time_is_what_no_rank_on_these_cores_used_and_idle_are_cores_beyond_their_threads():
    pinned = columns([usage([0], cpu=9, busy=9), usage([1], cpu=5, busy=10)])
    assert [one["foreign_ns"] for one in pinned] == [0, 5 * SECOND]
    shared = columns([usage([0, 1], cpu=9, busy=18), usage([0, 1], cpu=6, busy=18)])
    assert [one["foreign_ns"] for one in shared] == [3 * SECOND] * 2
    counted = [columns([usage([0], cpu=cpu, busy=busy)])[0] for cpu, busy in ((9, 8), (9, 0), (0, 0))]
    assert [one["foreign_ns"] for one in counted] == [0, UNKNOWN, 0], "a sandbox counts nothing"
    oversubscribed = columns([usage([0], cpu=10 / 7, busy=10) for _ in range(7)])
    assert all(one["foreign_ns"] < 1000 for one in oversubscribed)
    (found, _) = columns([usage([0, 1], cpu=9, busy=10), usage([0, 1], cpu=1, busy=10, threads=0)])
    assert (found["foreign_ns"], found["idle_cores"]) == (0, 1), "ranks that sleep through the case want no core"
    for threads, idle in [(1, 3), (4, 0), (9, 0)]:
        (found,) = columns([usage(range(8), cpu=1, busy=2, threads=threads, physical=4)])
        assert found["idle_cores"] == idle


@pytest.mark.parametrize(
    ("foreign", "cases", "seconds", "least", "most"),
    [(0.0, 4000, (0.2, 30), 0, 0.001), (0.03, 4000, (0.2, 30), 0, 0.001), (1 / 3, 1000, (10, 30), 1, 1)],
    ids=["a quiet machine", "daemons", "a process that takes a third of a core"],
)
def test_only_cases_with_another_process_are_marked(foreign, cases, seconds, least, most):
    """By counters of a kernel that samples cores once per tick.

    The rank uses a random share of each of its cores, other processes ``foreign`` of a core in all.
    """
    rng, found = np.random.default_rng(1), 0
    for _ in range(cases):
        wall, cores = rng.uniform(*seconds), int(rng.integers(1, 5))
        used = rng.uniform(0, 1 - foreign, cores)
        sampled = rng.binomial(round(wall * TICKS), used + foreign / cores)
        one = usage(range(cores), cpu=(used * wall).sum(), busy=sampled.sum() / TICKS, threads=cores, wall=wall)
        (counted,) = columns([one])
        columns_of_case = {name: np.array([value]) for name, value in {**counted, "rank": 0}.items()}
        found += disturbance(columns_of_case).cause is not None
    assert least <= found / cases <= most


CPU = "sys/devices/system/cpu"
ZONES = {0: "package-0", "0:0": "core", "0:1": "dram", 1: "package-1", 2: "psys"}
"""Of a machine with two Intel processors; the zone of the platform has the others' energy, too."""
RANGE = 262_143_328_850


class NVMLError(Exception):
    def __init__(self, value=3):  # not supported
        self.value = value


class Nvml:
    """``pynvml`` of a node with GPUs; ``refuses``: functions that raise; ``broken``: codes of errors by GPU."""

    NVMLError = NVMLError

    def __init__(self, counters=(), reasons=0, gpus=1, refuses=()):
        self.counters, self.reasons, self.gpus = dict(counters), reasons, gpus
        self.slowed = 7  # ns
        self.refuses, self.broken = refuses, {}
        self.calls = []

    def __getattr__(self, name):
        answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: self.gpus,
            "nvmlDeviceGetHandleByIndex": lambda number: number,
            "nvmlDeviceGetFieldValues": lambda _, asked: [*map(self.field, asked)],
            "nvmlDeviceGetViolationStatus": lambda *_: types.SimpleNamespace(violationTime=self.slowed),
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: self.reasons,
        }
        if name not in answers:
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append(name)
            if name in self.refuses:
                raise NVMLError
            if arguments and arguments[0] in self.broken:
                raise NVMLError(self.broken[arguments[0]])
            return answers[name](*arguments)

        return call

    def field(self, number):
        value = types.SimpleNamespace(ullVal=self.counters.get(number, 0), dVal=1e-300)
        return types.SimpleNamespace(nvmlReturn=0 if number in self.counters else 3, valueType=3, value=value)


@pytest.fixture
def clock(monkeypatch):
    """A clock in seconds."""
    now = [0.0]
    clock = types.SimpleNamespace(perf_counter_ns=lambda: round(now[0] * SECOND))
    monkeypatch.setattr(counters_module, "time", clock)
    monkeypatch.setattr(counters_module.os, "cpu_count", lambda: 2)  # the others are offline
    monkeypatch.setattr(counters_module.os, "sched_getaffinity", lambda _: {2, 5})
    return now


@pytest.fixture
def node(tmp_path, put, clock):
    """Two processors of two cores with two threads each, and NVIDIA's driver."""
    for cpu in range(8):
        folder = f"{CPU}/cpu{cpu}"
        put(f"{folder}/topology/thread_siblings_list", f"{cpu % 4},{cpu % 4 + 4}\n")
        put(f"{folder}/topology/physical_package_id", f"{cpu % 2}\n")
        put(f"{folder}/thermal_throttle/core_throttle_count", "7\n")
        put(f"{folder}/thermal_throttle/package_throttle_count", "70\n")
    for zone, name in ZONES.items():
        for file, text in {"name": name, "max_energy_range_uj": RANGE, "energy_uj": 10**6}.items():
            put(f"sys/class/powercap/intel-rapl:{zone}/{file}", f"{text}\n")
    put("proc/driver/nvidia/version", "NVRM version")
    return tmp_path


def test_processors(node, put, clock):
    """Of a core two threads share a counter, of a processor all cores; energy is that of packages and memory."""
    sensors = Sensors(node, Nvml(gpus=0))
    begin = sensors.read()
    clock[0] = 100.0
    put(f"{CPU}/cpu1/thermal_throttle/core_throttle_count", "9")
    put(f"{CPU}/cpu5/thermal_throttle/core_throttle_count", "9")  # the same core
    put(f"{CPU}/cpu3/thermal_throttle/core_throttle_count", "8")
    put(f"{CPU}/cpu0/thermal_throttle/core_throttle_count", "0")  # began again
    put("sys/class/powercap/intel-rapl:0/energy_uj", str(5 * 10**6 + 1))
    put("sys/class/powercap/intel-rapl:0:1/energy_uj", str(2 * 10**6))
    put("sys/class/powercap/intel-rapl:1/energy_uj", "500000")  # wrapped
    put("sys/class/powercap/intel-rapl:2/energy_uj", str(90 * 10**6))
    health = sensors.health(begin)
    assert health.throttled == ["processor 1 3 thermal events of cores"]
    assert health.joules == {"processors": pytest.approx((4 * 10**6 + 1 + 10**6 + RANGE - 500_000) / 1e6)}
    clock[0] = 1000.0  # the counter of 262 kJ may have wrapped twice
    assert sensors.health(begin).joules == {}


@pytest.mark.parametrize(
    ("slowed", "reasons", "words"),
    [
        (30 * SECOND, 0, ["GPU 0 thermal slowdown for 30 % of the case"]),
        (SECOND // 2, 0, []),
        (0, 0x08 | 0x80, ["GPU 0 hardware power brake at the end"]),
        (0, 0x01 | 0x02 | 0x04 | 0x10 | 0x100, []),  # idle, clocks set, power limit, a group's clocks, display
        (-5, 0, []),  # the driver was loaded again
    ],
)
def test_throttled_gpus(node, clock, slowed, reasons, words):
    nvml = Nvml()
    sensors = Sensors(node, nvml)
    begin = sensors.read()
    clock[0], nvml.reasons = 100.0, reasons
    nvml.slowed += slowed
    assert sensors.health(begin).throttled == words


def test_energy_and_errors_of_gpus(node, clock):
    nvml = Nvml({83: 1000, 4: 2, 52: 9}, gpus=2)
    sensors = Sensors(node, nvml)
    begin = sensors.read()
    nvml.counters = {83: 251_000, 4: 5, 52: 9}
    health = sensors.health(begin)
    assert health.joules == {"processors": 0.0, "GPUs": 500.0}
    assert health.errors == [f"GPU {gpu} 3 uncorrected ECC errors" for gpu in (0, 1)]
    nvml.counters = {4: 1}  # began again, and the energy is no longer told
    assert sensors.health(begin)._replace(joules={}) == Health([], [], {})


@pytest.mark.parametrize(
    ("code", "words"), [(15, ["GPU 2 is lost: it has fallen off the bus"]), (16, ["GPU 2 needs a reset"]), (4, [])]
)
@pytest.mark.parametrize("since", ["the job began", "the case began"])
def test_a_broken_gpu_is_an_error_and_hides_no_other(node, clock, code, words, since):
    """Code 4: no permission."""
    nvml = Nvml({83: 1000, 4: 2}, gpus=4)
    nvml.broken = {2: code} if since == "the job began" else {}
    sensors = Sensors(node, nvml)
    begin = sensors.read()
    nvml.counters, nvml.broken, nvml.reasons = {83: 3000, 4: 5}, {2: code}, 0x40
    health = sensors.health(begin)
    assert health.errors == sorted([*words, *(f"GPU {gpu} 3 uncorrected ECC errors" for gpu in (0, 1, 3))])
    assert health.throttled == [f"GPU {gpu} hardware thermal slowdown at the end" for gpu in (0, 1, 3)]
    assert "GPUs" not in health.joules  # of three of four


def test_energy_that_stands_still_is_unknown(node, clock, put):
    nvml = Nvml({83: 1000})
    sensors = Sensors(node, nvml)
    begin = sensors.read()
    clock[0] = 2.0
    assert sensors.health(begin).joules == {}
    for zone in ("0", "0:1", "1"):
        put(f"sys/class/powercap/intel-rapl:{zone}/energy_uj", "3000000")
    assert sensors.health(begin).joules == {"processors": 6.0}


def test_nothing_fails_without_rights_devices_or_library(node, monkeypatch, tmp_path):
    names = ("FieldValues", "CurrentClocksEventReasons", "ViolationStatus")
    reading = [f"nvmlDeviceGet{name}" for name in names]
    opening = ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"]
    for refused in reading + opening:
        nvml = Nvml({83: 1}, refuses=[refused])
        sensors = Sensors(node, nvml)
        found = sensors.health(sensors.read())
        assert (found.throttled, found.errors) == ([], [])
        assert ("GPUs" in found.joules) == (refused not in {*opening, reading[0]})
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)  # not installed
    assert Sensors(node).read().active == {}
    bare = Sensors(tmp_path / "bare")
    assert bare.health(bare.read()) == Health([], [], {})
    for zone in ZONES:  # only root may read them
        file = node / f"sys/class/powercap/intel-rapl:{zone}/energy_uj"
        file.unlink()
        file.mkdir()
    sensors = Sensors(node, Nvml(gpus=0))
    assert sensors.health(sensors.read()).joules == {}


def test_reads_few_files_and_calls(node, monkeypatch):
    """10 ms a case: some 100 us per call of NVML, less than 10 us per file."""
    nvml = Nvml({83: 1}, gpus=8)
    sensors = Sensors(node, nvml)
    files = []
    monkeypatch.setattr(counters_module.machine, "text", lambda file: files.append(file) or "1")
    nvml.calls.clear()
    sensors.read()
    assert len(nvml.calls) == 3 * 8
    assert len(files) == len(set(files)) == 4 + 2 + 3  # cores, processors, zones


def test_fields_of_a_case():
    """Energy counts once for hosts of one machine, and only for devices that all nodes tell."""
    one = Health(["a", "b"], [], {"processors": 5.0, "GPUs": 7.0})
    other = Health([], ["GPU 0 1 NVLink replays"], {"processors": 6.0})
    machines = {"n1": "x", "n2": "y", "n3": "y"}
    assert counters_module.health_of_case({"n1": one, "n2": other, "n3": other}, machines) == {
        "throttled": "n1: a, b",
        "hardware_errors": "n2: GPU 0 1 NVLink replays; n3: GPU 0 1 NVLink replays",
        "energy_joules": 11.0,
        "energy_of": "processors",
    }
    for nothing in ({}, {"n1": Health([], [], {})}):
        assert counters_module.health_of_case(nothing, machines) == {}


def test_reports(hand):
    """A throttled case has a badge and a warning; energies are per image of all steps and per GB of repetitions."""
    hand.train([[80.0] * 12] * 2, throttled="n3: GPU 2 hot", energy_joules=1920.0, energy_of="GPUs")
    collective = {"kind": "collective", "collective": "allreduce", "aggregation": "ring", "message_bytes": 10**8}
    hand.case([[5.0] * 8] * 2, **collective, operations=2, energy_joules=80.0, energy_of="GPUs")
    run = hand.read()
    training, allreduce = json.loads(render([run], "json"))["cases"]
    assert training["joules_per_image"] == 1920 / (12 * 2 * 16)
    assert training["joules_per_gigabyte"] is None
    assert allreduce["joules_per_gigabyte"] == pytest.approx(80 / (8 * 2 * 0.1))
    (made,) = findings([run])
    assert "clocks were throttled" in badges(made.records[:1])
    assert "clocks were throttled" not in badges(made.records[1:])
    page = " ".join(render([run], "html").split())
    assert "Clocks were throttled in 1 case" in page
    assert "n3: GPU 2 hot" in page
    assert "J/GB" in page
