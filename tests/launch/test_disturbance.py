"""Counters of a rank and its cores, from synthetic /proc and /sys."""

import numpy as np
import pytest

from hpcdl.analysis.run.disturbance import disturbance
from hpcdl.fabric.mpi import backoff
from hpcdl.launch import disturbance as counters_of_cores
from hpcdl.launch.disturbance import TICK_NS, UNKNOWN, Counters, Sample, Usage, columns

SECOND = 10**9
TICKS = SECOND // TICK_NS


def stat(*cores):
    """/proc/stat of cores with (user, nice, system, idle, iowait, irq, softirq, steal) ticks."""
    lines = [f"cpu{number} {' '.join(map(str, ticks))} 0 0\n" for number, ticks in enumerate(cores)]
    return f"cpu  9 9 9 9 9 9 9 9 9 9\n{''.join(lines)}intr 7 7\n"


@pytest.fixture
def on_core_1(monkeypatch):
    monkeypatch.setattr(counters_of_cores, "here", lambda: backoff.Place("m", frozenset([1])))


def sample(**known):
    values = {"time_ns": 0, "cpu_ns": 0, "busy_ns": 0, "steal_ns": 0, "involuntary_switches": 0}
    rest = {"retransmissions": UNKNOWN, "load": 1.0}
    return Sample(**{**values, **rest, **known})


def usage(cores, *, cpu=0.0, busy=0.0, threads=1, wall=10.0, machine="m", physical=None):
    """Use of ``cores`` in ``wall`` seconds: ``cpu`` seconds of the rank, ``busy`` of all processes."""
    end = sample(time_ns=int(wall * SECOND), cpu_ns=int(cpu * SECOND), busy_ns=int(busy * SECOND))
    place = backoff.Place(machine, frozenset(cores))
    return Usage(place, physical or len(place.cores), threads, sample(), end)


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


def test_foreign_time_is_what_no_rank_on_these_cores_used():
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


def test_cores_that_the_threads_of_ranks_leave_are_idle():
    for threads, idle in [(1, 3), (4, 0), (9, 0)]:
        (found,) = columns([usage(range(8), cpu=1, busy=2, threads=threads, physical=4)])
        assert found["idle_cores"] == idle


def marked(rng, cases, foreign, seconds):
    """Return the share of cases that are marked, by counters of a kernel that samples cores once per tick.

    The rank uses a random share of each of its cores, other processes ``foreign`` of a core in all.
    """
    found = 0
    for _ in range(cases):
        wall, cores = rng.uniform(*seconds), int(rng.integers(1, 5))
        used = rng.uniform(0, 1 - foreign, cores)
        sampled = rng.binomial(round(wall * TICKS), used + foreign / cores)
        one = usage(range(cores), cpu=(used * wall).sum(), busy=sampled.sum() / TICKS, threads=cores, wall=wall)
        (counted,) = columns([one])
        columns_of_case = {name: np.array([value]) for name, value in {**counted, "rank": 0}.items()}
        found += disturbance(columns_of_case).cause is not None
    return found / cases


def test_cases_of_a_quiet_machine_are_hardly_ever_marked():
    for daemons in [0.0, 0.01, 0.03]:
        assert marked(np.random.default_rng(1), 4000, daemons, (0.2, 30)) <= 0.001


def test_a_process_that_takes_a_third_of_a_core_is_noticed():
    assert marked(np.random.default_rng(1), 1000, 1 / 3, (10, 30)) == 1
