"""Slow hosts by their own work, and what is measured again before it is named."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest

from hpcdl.analysis.network.links import departures, links
from hpcdl.analysis.network.nodes import Nodes, nodes, slow_hosts
from hpcdl.analysis.run.record import Record
from hpcdl.cases.parts import measuring
from hpcdl.cases.parts.measuring import confirmed
from hpcdl.fabric.pairs import rounds


def case(speeds, work="matrix_product", noise=0.01, repetitions=5):
    """Return a node case of hosts with these speeds."""
    random = np.random.default_rng(len(speeds))
    seconds = 0.02 / np.array(speeds) * np.exp(noise * random.normal(size=(repetitions, len(speeds))))
    return Nodes(Record(kind="node", collective=work), [f"host{rank}" for rank in range(len(speeds))], seconds)


@pytest.mark.parametrize("hosts", [3, 4, 16])
@pytest.mark.parametrize("speed", [0.3, 0.8])
def test_a_slow_node_is_named_with_its_speed(hosts, speed):
    speeds = np.ones(hosts)
    speeds[1] = speed
    (named,) = slow_hosts([case(speeds, work) for work in ("matrix_product", "triad")]).items()
    assert named[0] == "host1"
    assert named[1][0].value == pytest.approx(speed, rel=0.05)


def test_slow_memory_alone_names_the_node_with_this_work():
    speeds = np.ones(8)
    slow = np.where(np.arange(8) == 5, 0.5, 1.0)
    named = slow_hosts([case(speeds), case(slow, "triad"), case(speeds, "convolution")])
    works = {host: [each.record.collective for each in cases] for host, (_, cases) in named.items()}
    assert works == {"host5": ["triad"]}


def test_no_node_is_named_for_noise_one_repetition_or_a_little_in_one_work_or_of_two_hosts():
    noisy = [case(np.ones(16), work, noise=0.1) for work in ("matrix_product", "triad", "convolution")]
    stalled = [Nodes(Record(kind="node"), ["a", "b", "c"], np.array([[1.0, 1.0, 1.0], [1.0, 4.0, 1.0]]))]
    slow = [case([1.0, speed, 1.0, 1.0], work) for work, speed in (("triad", 0.85), ("x", 1.0), ("y", 1.0))]
    for cases in (noisy, stalled, slow, [case([1.0, 0.5])]):
        assert slow_hosts(cases) == {}


def test_a_host_is_as_slow_as_its_slowest_rank_after_the_warm_up_and_when_it_is_measured_again(hand):
    """Host b was slow at first only; a failed case has no times."""
    times = [[90.0, 10.0, 10.0], [90.0, 20.0, 20.0], [90.0, 30.0, 30.0], [90.0, 10.0, 10.0]]
    fields = {"kind": "node", "collective": "triad", "warmup_steps": 1, "measured_again": "[[2, 3.0, 1.0]]"}
    hand.case(times, case="n", **fields).case(times, case="failed", **fields, error="rank 0: OSError: full")
    (found,) = nodes(hand.read({"ranks": [{"hostname": name} for name in "aabc"]}))
    assert found.repeated == pytest.approx(np.array([[0.02, 0.01, 0.01]] * 2))
    assert found.passed == ("b",)
    usual_is_fast = replace(found, hosts="abcde", repeated=np.array([[1.0, 1.0, 2.0, 2.0, 2.0]]))
    assert usual_is_fast.slowness() == {"a": 1.0, "b": 1.0, "c": 2.0, "d": 2.0, "e": 2.0}


@pytest.mark.parametrize("hosts", [3, 4, 7, 16])
def test_slow_pairs_are_measured_again_in_rounds_without_conflict(monkeypatch, hosts):
    """Each pair of host 1 takes 1.4 times as long, each time."""
    monkeypatch.setattr(measuring, "PAUSE_SECONDS", 0)
    pairs = [
        [rank * hosts + peer for rank, peer in enumerate(partners) if peer is not None and rank < peer]
        for partners in rounds(hosts, "all_pairs")
    ]
    slow = {(min(1, other), max(1, other)) for other in range(hosts) if other != 1}
    usual = np.array([1400 if divmod(pair, hosts) in slow else 1000 for pair in range(hosts**2)])
    calls = []

    async def measure(which):
        ranks = [rank for pair in which for rank in divmod(pair, hosts)]
        assert len(ranks) == len(set(ranks)), "a rank exchanges with one other at a time"
        calls.append(which)
        return np.where(np.isin(np.arange(hosts**2), [*which]), usual, 0)

    first = np.where(np.isin(np.arange(hosts**2), [pair for round_ in pairs for pair in round_]), usual, 0)
    text = asyncio.run(confirmed(first, pairs, measure, 2))
    found = {divmod(pair, hosts): least for pair, (_, least) in departures(Record(measured_again=text)).items()}
    assert found == dict.fromkeys(slow, pytest.approx(1.4))
    assert any(len(which) > 1 for which in calls) or hosts == 3


def test_records_name_what_returned_and_tell_what_did_not(hand):
    """host2's pairs took 1.5 times as long twice; pair (0, 1) did so once."""
    slow = [{0, 1}, {0, 2}, {1, 2}, {2, 3}]
    steps = [
        [1.5 if {rank, partners[rank]} in slow else 1.0 for partners in rounds(4, "all_pairs") for _ in range(6)]
        for rank in range(4)
    ]
    listed = [[1, 1.5, 1.0], *([min(2, other) * 4 + max(2, other), 1.5, 1.5] for other in (0, 1, 3))]
    fields = {"kind": "pairwise", "pattern": "all_pairs", "aggregation": "fabric", "message_bytes": 1 << 18}
    fields |= {"ranks": 4, "warmup_steps": 0, "settings": {"confirm": 2}, "measured_again": json.dumps(listed)}
    hand.case(steps, case="c", **fields)
    (found,) = links(hand.read())
    assert found.passed == [(0, 1)]
    assert found.seconds[0, 1] == pytest.approx(1e-3)
    assert found.seconds[0, 2] == pytest.approx(1.5e-3)
    assert nodes(hand.read()) == []


def test_a_side_that_loses_its_core_now_and_then_does_not_slow_the_pair(hand):
    """Ranks 0 and 1 are delayed in turn, in half of the exchanges each: each side's median is undisturbed."""
    delayed = [1.0, 3.0, 1.0, 1.0, 3.0, 1.0, 1.0]
    sides = [delayed, [1.0, 1.0, 3.0, 3.0, 1.0, 3.0, 1.0]]
    fields = {"kind": "pairwise", "pattern": "bisection", "aggregation": "fabric", "message_bytes": 64}
    hand.case(sides, case="c", **fields, warmup_steps=0)
    assert links(hand.read())[0].seconds[0, 1] == pytest.approx(1e-3)
