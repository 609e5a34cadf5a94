"""Waiting and transfer of simulated programs, whose times are exact, and of events made by hand."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from hpcdl import registry
from hpcdl.analysis.network.waiting import _mean, _repetitions, of_case, of_events
from hpcdl.analysis.run.record import Record
from hpcdl.fabric.network import Link, Network, Site
from hpcdl.fabric.topologies.fat_tree import FatTree
from hpcdl.fabric.virtual.clocks import simulated

ALPHA, BETA = 1e-5, 1e-8
NETWORK = Network("by hand", Link(ALPHA, BETA), source="none", gamma=0.0)
ELEMENTS, WORK, LATE = 6000, 0.005, 0.02
TRAIN = {"kind": "train", "warmup_steps": 0}
STEP = [(name, np.int64) for name in ("rank", "step", "begin", "end")]
COLUMNS = ["rank", "task", "label", "begin", "end", "peer", "bytes"]


def simulate(name, ranks, *, late_rank=None, network=NETWORK, rounds=3):
    """Return the waiting of steps of computing and an allreduce; ``late_rank`` computes longer by LATE."""
    steps = []

    async def program(comm):
        aggregate = partial(registry.find("aggregation", name), comm)
        for step in range(rounds):
            begin = world.now
            await comm.compute("forward", lambda: None)
            await aggregate(np.ones(ELEMENTS, np.float32))
            steps.append((comm.rank, step, round(begin * 1e9), round(world.running.time * 1e9)))

    events = [[] for _ in range(ranks)]
    work = lambda rank, _: WORK + (LATE if rank == late_rank else 0)
    world = simulated(ranks, network, compute=work, events=events)
    world.run(program)
    rows = [(rank, *event) for rank, mine in enumerate(events) for event in mine]
    return of_rows(*rows, steps=steps, ranks=ranks)


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
@pytest.mark.parametrize("name", ["ring", "native"])
def test_a_late_rank_is_exactly_the_others_waiting(name, ranks):
    """Ranks that are alike never wait in a ring; a late rank makes every other rank wait by its lateness."""
    even, late = simulate(name, ranks), simulate(name, ranks, late_rank=1)
    others = [rank for rank in range(ranks) if rank != 1]
    assert even.waiting == pytest.approx(np.zeros(ranks), abs=2e-9)
    assert late.waiting[others] == pytest.approx(LATE, abs=2e-9)
    assert late.waiting[1] == pytest.approx(0, abs=2e-9)
    assert late.transfer == pytest.approx(even.transfer, abs=2e-9)
    assert even.late is None
    assert late.late.rank == 1
    assert late.late.seconds == pytest.approx(LATE, abs=2e-9)


def test_work_waiting_and_transfer_fill_the_step_and_a_ring_moves_its_bytes_in_the_transfer():
    for name in ["ring", "tree", "halving_doubling", "direct", "double_tree"]:
        found = simulate(name, 5, late_rank=3)
        late = np.where(np.arange(5) == 3, LATE, 0)
        assert found.waiting + found.transfer + WORK + late == pytest.approx(found.step_seconds, abs=1e-8)
        assert found.late.rank == 3
        assert found.late.seconds == pytest.approx(LATE, rel=0.1)
    chunk = ELEMENTS // 4 * 4
    assert simulate("ring", 4).transfer == pytest.approx(6 * (ALPHA + chunk * BETA), abs=1e-8)


def test_a_slow_link_is_transfer_and_makes_no_rank_late():
    slow_links = {"switch 0.1 up": 0.02, "switch 0.1 down": 0.02}
    slowed = replace(NETWORK, topology=FatTree(hosts=[2, 2]), site=Site(slow=slow_links))
    for name in ["ring", "tree"]:
        usual = simulate(name, 4)
        slow = simulate(name, 4, network=slowed)
        assert slow.late is None
        assert slow.transfer.max() > 10 * usual.transfer.max()


def test_a_rank_is_late_by_a_twentieth_of_the_step_in_half_of_the_steps_and_beyond_the_clock_error():
    """One stall makes no late rank, nor what a step hardly shows."""
    late = simulate("ring", 4, late_rank=2)
    assert late.leads == 1
    assert [replace(late, leads=share).late is None for share in (0.49, 0.5)] == [True, False]
    steps = (late.step_seconds * 0 + LATE * n for n in (19, 21))
    assert [replace(late, step_seconds=seconds).late is None for seconds in steps] == [False, True]
    assert [replace(late, clock_error=share * LATE).late is None for share in (0.4, 0.5)] == [False, True]


def of_rows(*rows, steps, **fields):
    return of_events(pd.DataFrame(rows, columns=COLUMNS), np.array(steps, STEP), Record.of({**TRAIN, **fields}))


def ms(value):
    return round(value * 1e6)


def message(sent, asked, *, task=0):
    """Two rows: a send of rank 0 and the receive of rank 1, each (begin, end) in ms."""
    return (0, task, "send", ms(sent[0]), ms(sent[1]), 1, 8), (1, task, "recv", ms(asked[0]), ms(asked[1]), 0, 8)


STEPS = [(0, 0, 0, ms(10)), (1, 0, 0, ms(10))]


def test_a_message_waits_for_its_later_end_unless_the_rank_computes():
    for sent, asked, waits, moves in [
        ((4, 6), (1, 6), (0, 3), (2, 2)),  # the receiver waits for its sender
        ((1, 6), (4, 6), (3, 0), (2, 2)),  # the sender is held until the receive begins
        ((1, 2), (4, 5), (0, 0), (1, 1)),  # the message was buffered
        ((7, 8), (1, 6), (0, 5), (1, 0)),  # clocks that differ: the receive ends before its send begins
    ]:
        found = of_rows(*message(sent, asked), steps=STEPS)
        assert found.waiting == pytest.approx(np.array(waits) / 1e3)
        assert found.transfer == pytest.approx(np.array(moves) / 1e3)
    compute = (1, 0, "forward", ms(0), ms(3), -1, 0)
    found = of_rows(*message((4, 6), (1, 6), task=1), compute, steps=STEPS)
    assert found.waiting == pytest.approx([0, 0.001])
    assert found.latest.rank == 0


def test_warm_up_and_steps_without_events_are_left_out():
    steps = [(rank, step, ms(10 * step), ms(10 * step + 10)) for rank in (0, 1) for step in range(3)]
    first, second = message((4, 6), (1, 6)), message((13, 16), (11, 16))
    assert of_rows(*first, *second, steps=steps).steps == 2
    found = of_rows(*first, *second, steps=steps, warmup_steps=1)
    assert found.steps == 1
    assert found.waiting == pytest.approx([0, 0.002])


def test_the_same_native_collective_is_one_of_all_ranks():
    """A label that ranks call unequally often is a collective of some of them: its waiting is unknown."""
    calls = [(rank, 0, "native allreduce", ms(1 + rank), ms(5), -1, 8) for rank in (0, 1)]
    assert of_rows(*calls, steps=STEPS).waiting == pytest.approx([0.001, 0])
    more = (0, 0, "native allreduce", ms(6), ms(7), -1, 8)
    assert of_rows(*calls, more, steps=STEPS).waiting == pytest.approx([0, 0])


def test_a_rank_that_begins_a_repetition_late_is_late(hand):
    """Rank 1 begins 2 ms later in each repetition of a collective: by its events, by its spans, by a record."""
    spans = [(rank, n, ms(10 * n + 2 * rank), ms(10 * n + 5)) for rank in (0, 1) for n in range(4)]
    calls = [(rank, 0, "native allreduce", begin, end, -1, 8) for rank, _, begin, end in spans]
    found = of_rows(*calls, steps=spans, kind="collective", warmup_steps=1)
    assert found.late == (1, pytest.approx(0.002))
    untraced = _mean(_repetitions(np.array(spans, STEP), 1), found.record)
    assert untraced.columns == found.columns
    assert untraced.steps == found.steps == 3
    kind = {"kind": "collective", "collective": "allreduce", "aggregation": "native", "message_bytes": 8}
    hand.case([[2.0, *[5.0] * 20], [4.0, *[5.0] * 20]], common_clock=True, warmup_steps=1, **kind)
    recorded = of_case(hand.read(), 0)  # rank 1 ends 2 ms later, too
    assert recorded.waiting == pytest.approx([0.002, 0])
    assert recorded.transfer == pytest.approx([0.003, 0.005])


def test_repetitions_that_end_before_another_rank_begins_wait_for_none():
    """Rank 1 begins 2 ms late, but after rank 0's end in the first repetitions of 20; if many, none is shared."""
    for apart, waits in ((1, 0.002 * 19 / 20), (5, 0)):
        begins = [[10 * n, 10 * n + (7 if n < apart else 2)] for n in range(20)]
        spans = [(rank, n, ms(begins[n][rank]), ms(10 * n + 5 + 4 * rank)) for n in range(20) for rank in (0, 1)]
        found = _mean(_repetitions(np.array(spans, STEP), 0), Record(kind="collective", ranks=2))
        assert found.waiting == pytest.approx([waits, 0])


def test_ranks_that_share_no_step_have_no_late_one():
    """A table of all steps and ranks would take 3.2 GB for each column of 20,000 rows."""
    steps = np.array([(number, number, 0, 1) for number in range(20_000)], STEP)
    record = Record(kind="collective", ranks=len(steps))
    assert record.keeps_step
    assert _mean(_repetitions(steps, 0), record).latest is None


def test_steps_after_the_last_event_of_a_rank_that_dropped_some_are_left_out(hand):
    """Rank 1 has no event after 11 ms, in its second step; rank 0 has one in its third."""

    def event(label, begin, end, peer):
        return 0, label, 10**9 + ms(begin), 10**9 + ms(end), peer, 8

    events = [
        [event("send", 4, 6, 1), event("send", 13, 16, 1), event("forward", 25, 26, -1)],
        [event("recv", 1, 6, 0), event("recv", 11, 16, 0)],
    ]
    for dropped, steps in ((0, 2), (1, 1)):
        hand.train([[10.0] * 3] * 2, events=events, dropped=(dropped, 0), common_clock=True, warmup_steps=0)
        assert of_case(hand.read(), dropped).steps == steps
