"""Node cases: which repetitions and which rank of a host count, and which of several measurements decides."""

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest

from hpcdl.analysis.network.links import departures
from hpcdl.analysis.run.record import Record
from hpcdl.cases import node
from hpcdl.cases.node import NodeSpec
from hpcdl.cases.parts import measuring
from hpcdl.cases.parts.measuring import PAUSE_SECONDS, confirmed
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.fabric.virtual.comm import VirtualComm


@pytest.fixture
def pauses(monkeypatch):
    """The lengths of the pauses, which take no time."""
    taken = []
    monkeypatch.setattr(measuring, "sleep", taken.append)
    return taken


@pytest.mark.parametrize(("pattern", "turns"), [("alone", 3), ("together", 1)])
def test_the_record_is_of_the_first_measurement_and_a_host_is_as_slow_as_its_slowest_rank(
    monkeypatch, pauses, pattern, turns
):
    """Of three hosts with two ranks; both ranks of the last one are slow, rank 5 most, each time less."""
    done, barriers, kept = [], [], {}

    def timed(spec):
        rank = spec.threads - 1  # the ranks' cases differ in it
        usual = {4: (1100, 1100, 1100), 5: (1500, 1400, 1300)}.get(rank, (1000,) * 3)[done.count(rank)]
        done.append(rank)
        return [(0, 10**6 if rank == 1 else 0), (0, 100), (0, usual), (0, 9 * usual)]

    async def hosts(_comm):
        return [0, 0, 2, 2, 4, 4]

    monkeypatch.setattr(node, "timed", timed)
    monkeypatch.setattr(node, "hosts_of_ranks", hosts)
    monkeypatch.setattr(VirtualComm, "sleeping_barrier", lambda comm: barriers.append(comm.rank), raising=False)

    def record(confirm):
        def program(comm):
            journal = SimpleNamespace(repetitions=lambda spans, *_: kept.update({comm.rank: spans[2]}))
            spec = NodeSpec(ranks=6, pattern=pattern, confirm=confirm, warmup=1, threads=comm.rank + 1)
            return node.program(spec, journal)(comm)

        return in_process(6).run(program)

    assert record(3) == [{"measured_again": json.dumps([[4, 1.5, 1.4, 1.3]])}] * 6
    assert kept == {0: (0, 1000), 1: (0, 1000), 2: (0, 1000), 3: (0, 1000), 4: (0, 1100), 5: (0, 1500)}
    assert sorted(done) == sorted([*range(6)] * 3), "the slow host beside both others"
    assert barriers.count(0) == 3 * turns
    assert pauses == [PAUSE_SECONDS] * 12
    done.clear()
    assert record(1) == [{}] * 6
    assert sorted(done) == [*range(6)]


def test_time_without_a_core_because_of_other_processes_does_not_count(monkeypatch):
    """A control group's own limit does; the kernel may count more waiting than the thread did not run."""
    clock = [0, 100, 200, 300, 400, 500]
    held = [(0, 0), (30, 10), (30, 10), (130, 10), (130, 10), (140, 40)]  # ready, of it by the limit
    ran = [0, 50, 50, 110, 110, 180]
    monkeypatch.setattr(node, "prepared", lambda *_: (lambda: None, lambda: None))
    for name, values in (("perf_counter_ns", clock), ("held_back_ns", held), ("thread_time_ns", ran)):
        monkeypatch.setattr(node, name, iter(values).__next__)
    spans = node.timed(NodeSpec(ranks=1, warmup=1, repetitions=2))
    assert spans == [(0, 100 - (30 - 10)), (200, 300 - 40), (400, 500)]


def test_an_item_departs_if_it_does_so_each_time_beside_the_least_disturbed_control(pauses):
    """Item 4 is slow three times. Item 5 returns the second time, and is left alone then."""
    first, calls = np.array([1000, 1000, 1010, 1020, 1500, 1600, 0]), []
    answers = [[3000, 1000, 2000, 9000, 9090], [2800, 2000, 2000, 2020]]  # all take twice as long by now

    async def measure(items):
        times = np.zeros(7, np.int64)
        times[items] = answers[len(calls)]
        calls.append(items)
        return times

    text = asyncio.run(confirmed(first, [range(7)], measure, 3))
    assert calls == [[4, 5, 0, 1, 2], [4, 0, 1, 2]]
    assert pauses == [PAUSE_SECONDS] * 2
    assert json.loads(text) == [[4, 1.5, 1.5, 1.4], [5, 1.6, 0.5]]
    counts = departures(Record(measured_again=text))
    assert counts[4] == (1.5, pytest.approx((1.5 * 1.5 * 1.4) ** (1 / 3)))
    assert counts[5] == (1.6, 1.0), "it did not return"
    assert asyncio.run(confirmed(first.clip(max=1000), [range(7)], measure, 3)) is None
    assert len(calls) == 2, "nothing departs, nothing is measured again"
