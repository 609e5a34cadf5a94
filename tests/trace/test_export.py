"""Matched messages, Perfetto timelines and GOAL schedules of simulated programs, whose times are exact."""

import zlib
from collections import defaultdict
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from contract.goal import simulated_goal
from google.protobuf import proto
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from hpcdl import registry
from hpcdl.fabric.network import Link, Network
from hpcdl.fabric.virtual.clocks import simulated
from hpcdl.trace import export
from hpcdl.trace.export import Selection, read_chakra, schedule, write_chakra, write_goal, write_perfetto
from hpcdl.trace.run import matched

ALPHA, BETA, GAMMA = 1e-5, 1e-9, 1e-10
NETWORK = Network("by hand", Link(ALPHA, BETA), source="none", gamma=GAMMA)
SCHEMES = ("ring", "tree", "halving_doubling", "direct", "hierarchical")


def simulate(name, ranks, overlapped=False):
    """Return the selection of an allreduce, after some computing, and its time in virtual seconds."""
    settings = {"inner": "ring", "outer": "butterfly"} if name == "hierarchical" else {}
    aggregate = partial(registry.find("aggregation", name), **settings)

    async def program(comm):
        await comm.compute("forward", lambda: None)
        if overlapped:
            tasks = []
            for _ in range(3):
                await comm.compute("backward", lambda: None)
                tasks.append(comm.start(aggregate(comm, np.ones(5000, np.float32))))
            for task in tasks:
                await task
        else:
            await aggregate(comm, np.ones(10_000, np.float32))

    events = [[] for _ in range(ranks)]
    world = simulated(ranks, NETWORK, compute=lambda rank, _: 1e-4 * (1 + rank % 3), events=events)
    world.run(program)
    return selection(events), world.now


def selection(events):
    """Return a selection of events by rank, as recorders have them, or of a frame."""
    frame = events
    if isinstance(events, list):
        rows = [(rank, *event) for rank, mine in enumerate(events) for event in mine]
        frame = pd.DataFrame(rows, columns=["rank", "task", "label", "begin", "end", "peer", "bytes"])
    steps = frame.groupby("rank").agg(begin=("begin", "min"), end=("end", "max")).reset_index().assign(step=0)
    return Selection("case", frame, steps, 0, matched(frame))


def test_a_message_with_one_end_selected_leaves_the_others_matched():
    """A ring sends equal messages: without its first send, the second one would go with the first receive."""
    whole, _ = simulate("ring", 3)
    first = whole.events.index[(whole.events["label"] == "send") & (whole.events["rank"] == 0)][0]
    part = replace(whole, events=whole.events.drop(first))
    send, recv = np.array([*part.messages]).reshape(2, -1)  # all sends, then all receives
    assert {*zip(send, recv, strict=True)} < {*whole.pairs.itertuples(index=False, name=None)}
    assert len(send) == len(whole.pairs) - 1


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("name", SCHEMES)
def test_every_message_is_matched_with_its_receive(name, ranks, overlapped):
    events = simulate(name, ranks, overlapped)[0].events
    found = matched(events)
    sends, receives = (events.loc[found[side]].reset_index(drop=True) for side in ("send", "recv"))
    assert sorted(found["send"]) == sorted(events.index[events["label"] == "send"])
    assert sorted(found["recv"]) == sorted(events.index[events["label"] == "recv"])
    assert (sends["peer"] == receives["rank"]).all()
    assert (sends["rank"] == receives["peer"]).all()
    assert (sends["bytes"] == receives["bytes"]).all()
    assert (receives["end"] - sends["begin"] >= sends["bytes"] * BETA * 1e9 - 2).all()


def test_ends_of_equal_tasks_match_if_both_ranks_have_used_them_alike():
    """Sends end in the order of tasks 1 and 2, receives in the order 2 and 1; else the order of ends decides."""
    for tasks, pairs in (((2, 1), [(0, 3), (1, 2)]), ((2, 3), [(0, 2), (1, 3)])):
        sends = [(task, "send", 0, 10 * task, 1, 8) for task in (1, 2)]
        receives = [(task, "recv", 0, end, 0, 8) for task, end in zip(tasks, (30, 40), strict=True)]
        found = matched(selection([sends, receives]).events)
        assert sorted(zip(found["send"], found["recv"], strict=True)) == pairs


def rows_of(pairs):
    return {*pairs.itertuples(index=False, name=None)}


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("name", ["ring", "tree", "halving_doubling", "hierarchical"])
def test_a_missing_end_leaves_one_message_alone(name, late):
    """All messages of a ring are equal: by their order alone those after a missing end would go astray.

    If measured, receives end some ns after their sends, each by another time.
    """
    events = simulate(name, 4)[0].events
    events = events.assign(end=events["end"] + late * (events["label"] == "recv") * (1 + events.index % 997))
    pairs = rows_of(matched(events))
    for row in events.index[events["label"].isin(["send", "recv"])]:
        assert rows_of(matched(events.drop(row))) == {pair for pair in pairs if row not in pair}


@pytest.mark.parametrize("name", [*SCHEMES, "parameter_server"])
def test_simulated_messages_of_which_both_sides_miss_ends_keep_their_partners(name):
    """Events of each rank begin and end at another time, as in a trace of some of the steps."""
    events = simulate(name, 5, overlapped=True)[0].events
    pairs = rows_of(matched(events))
    number = events.groupby("rank").cumcount()
    count = events.groupby("rank")["rank"].transform("size")
    kept = events[(number >= events["rank"]) & (number < count - 5 + events["rank"])]
    both = {pair for pair in pairs if {*pair} <= {*kept.index}}
    assert both
    assert both < pairs
    assert rows_of(matched(kept)) == both


def test_a_receive_does_not_take_a_message_that_was_not_sent_yet():
    """The first send and the last receive are missing; clocks whose error is not known prove nothing."""
    sends = [(0, "send", begin, begin + 1, 1, 8) for begin in (20, 30, 40)]
    receives = [(0, "recv", 0, end, 0, 8) for end in (15, 25, 35)]
    events = selection([sends, receives]).events
    assert matched(events).empty
    assert matched(events, 2e-9).empty
    assert len(matched(events, 3e-9)) == len(matched(events, None)) == 3


def test_a_message_with_one_end_takes_its_time_in_a_schedule(tmp_path):
    """What follows it on the rank begins no earlier, and no message is left over."""
    events = simulate("ring", 4)[0].events
    lost = events.index[(events["rank"] == 1) & (events["label"] == "recv")][1]
    whole, part = map(selection, (events, events.drop(lost)))
    cut = [each for each in schedule(part, 0) if each.label == "" and each.begin in {*whole.events["begin"]}]
    sent = whole.events.loc[whole.pairs.set_index("recv")["send"][lost]]
    assert [(each.begin, each.length) for each in cut] == [(sent["begin"], sent["end"] - sent["begin"])]
    assert write_goal(tmp_path / "x.goal", part) == len(whole.pairs) - 1
    assert simulated_goal((tmp_path / "x.goal").read_text(), ALPHA, BETA) == pytest.approx(
        whole.events["end"].max(), rel=0.02
    )


def packets(path):
    """Packets of a file, as a reader sees them: batches are unpacked in their places."""
    for packet in Trace.FromString(path.read_bytes()).packet:
        if packet.HasField("compressed_packets"):
            yield from Trace.FromString(zlib.decompress(packet.compressed_packets)).packet
        else:
            yield packet


@pytest.mark.parametrize("name", ["ring", "hierarchical"])
def test_a_timeline_has_every_event_and_an_arrow_for_each_message(tmp_path, name):
    chosen, _ = simulate(name, 4, overlapped=True)
    count = write_perfetto(tmp_path / "x.pftrace", chosen)
    names, tracks, processes = {}, {}, {}
    open_slices, times, flows = defaultdict(list), defaultdict(int), defaultdict(list)
    seen = 0
    for packet in packets(tmp_path / "x.pftrace"):
        names |= {one.iid: one.name for one in packet.interned_data.event_names}
        descriptor = packet.track_descriptor
        if descriptor.HasField("process"):
            processes[descriptor.uuid] = descriptor.process.process_name
        elif packet.HasField("track_descriptor"):
            tracks[descriptor.uuid] = processes[descriptor.parent_uuid]
        if not packet.HasField("track_event"):
            continue
        event, place = packet.track_event, packet.track_event.track_uuid
        assert packet.timestamp >= times[place]
        times[place] = packet.timestamp
        if event.type == event.TYPE_SLICE_BEGIN:
            assert not open_slices[place], "slices of one track do not overlap"
            open_slices[place].append((names[event.name_iid], packet.timestamp))
            seen += 1
            for flow in event.flow_ids:
                flows[flow].append((tracks[place], names[event.name_iid]))
        else:
            begun, _ = open_slices[place].pop()
            for flow in event.terminating_flow_ids:
                flows[flow].append((tracks[place], begun))
    assert not any(open_slices.values())
    assert seen == len(chosen.events) + len(chosen.steps)
    assert len(flows) == count == (chosen.events["label"] == "send").sum()
    for (source, sent), (dest, received) in flows.values():
        assert sent == f"send to {dest.removeprefix('rank ')}"
        assert received == f"receive from {source.removeprefix('rank ')}"


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "direct"])
def test_a_goal_schedule_takes_the_time_of_the_simulation(tmp_path, name, ranks, overlapped):
    """Not where many messages wait for one port, as in ``direct``: which goes first is each simulator's own."""
    chosen, seconds = simulate(name, ranks, overlapped)
    messages = write_goal(tmp_path / "x.goal", chosen)
    text = (tmp_path / "x.goal").read_text()
    assert text.count(": send ") == text.count(": recv ") == messages == (chosen.events["label"] == "send").sum()
    assert simulated_goal(text, ALPHA, BETA) == pytest.approx(seconds * 1e9, rel=0.05)


def test_concurrent_tasks_and_computing_are_on_different_streams_and_do_not_wait_for_each_other():
    chosen, _ = simulate("ring", 5, overlapped=True)
    for rank in range(5):
        operations = {each.number: each for each in schedule(chosen, rank)}
        stream = {number: each.stream for number, each in operations.items()}
        computing = [each for each in operations.values() if each.label in {"forward", "backward"}]
        assert {each.stream for each in computing} == {0}
        assert all(stream[other] == 0 for each in computing for other in each.requires)
        messages = [each for each in operations.values() if each.label in {"send", "recv"}]
        assert 0 not in {each.stream for each in messages}
        assert rank or {each.stream for each in messages} == {1, 2, 3}, "rank 0 computes fastest"
        before = [[stream[other] for other in each.requires] for each in messages]
        assert all({*streams} in ({0}, {each.stream}) for each, streams in zip(messages, before, strict=True))


def test_a_join_waits_for_all_tasks_and_not_only_for_the_last_to_end():
    """Tasks 1 and 2 end at 30 and at 40 ns, and the main program, idle from 10 on, goes on at 40."""
    mine = [(0, "forward", 0, 10, -1, 0), (1, "add", 10, 30, -1, 8), (2, "add", 10, 40, -1, 8)]
    *_, update = schedule(selection([[*mine, (0, "update", 40, 50, -1, 0)]]), 0)
    assert (update.label, update.requires) == ("update", [1, 2, 3])


def test_more_streams_than_goal_can_number_are_refused(tmp_path):
    events = [(0, "forward", 0, 1, -1, 0), *((task, "add", 1, 2, -1, 8) for task in range(1, 257))]
    with pytest.raises(ValueError, match="rank 0 has more than 256 tasks at once"):
        write_goal(tmp_path / "x.goal", selection([events]))


def test_tasks_that_wait_share_streams_and_those_that_compute_do_not(tmp_path):
    """300 exchanges wait at once, and the sums of two of them overlap; what occupies no stream needs none."""
    ranks = []
    for rank in range(2):
        ends = [(task, 1000 * task) for task in range(1, 301)]
        messages = [(task, label, 0, end, 1 - rank, 8) for task, end in ends for label in ("send", "recv")]
        ranks.append([*messages, *((task, "add", end, end + 1500, -1, 8) for task, end in ends)])
    chosen = selection(ranks)
    assert write_goal(tmp_path / "x.goal", chosen) == 600
    for rank in range(2):
        streams = defaultdict(set)
        for each in schedule(chosen, rank):
            streams[each.label].add(each.stream)
        assert streams == {"send": {1}, "recv": {2}, "add": {3, 4}}


def nodes_of(path):
    """Nodes of a Chakra file, and the attributes of each."""
    types = export.message_types()
    with path.open("rb") as file:
        assert proto.parse_length_prefixed(types["GlobalMetadata"], file).version
        while (node := proto.parse_length_prefixed(types["Node"], file)) is not None:
            yield node, {one.name: getattr(one, one.WhichOneof("value")) for one in node.attr}


@pytest.mark.parametrize("name", ["ring", "hierarchical"])
def test_a_chakra_trace_has_every_message_on_both_sides_and_only_earlier_dependencies(tmp_path, name):
    chosen, _ = simulate(name, 4, overlapped=True)
    count = write_chakra(tmp_path / "et", chosen)
    sides, computed = {"send": {}, "recv": {}}, 0
    for rank in range(4):
        known = set()
        for node, has in nodes_of(tmp_path / "et" / f"hpcdl.{rank}.et"):
            assert set(node.data_deps) <= known
            known.add(node.id)
            computed += node.type == 4 and node.name != "untraced"
            if node.name in sides:
                assert has["comm_src" if node.name == "send" else "comm_dst"] == rank
                assert node.type == {"send": 5, "recv": 6}[node.name]
                message = (has["comm_src"], has["comm_dst"], has["comm_tag"])
                sides[node.name][message] = has["comm_size"]
    assert sides["send"] == sides["recv"]
    traced = chosen.events["label"] == "send"
    assert len(sides["send"]) == count == traced.sum()
    assert sum(sides["send"].values()) == chosen.events["bytes"][traced].sum()
    assert computed == (~chosen.events["label"].isin(["send", "recv"])).sum()


def test_durations_of_a_chakra_trace_add_up_to_those_of_its_rank(tmp_path):
    """Sums of 1 KiB take .1024 us: the first one of a rank has 1 us, no other has any, and an attribute has the ns."""
    events = [[] for _ in range(4)]
    simulated(4, NETWORK, events=events).run(
        lambda comm: registry.find("aggregation", "ring")(comm, np.ones(1024, "f"))
    )
    write_chakra(tmp_path, selection(events))
    for rank in range(4):
        path = tmp_path / f"hpcdl.{rank}.et"
        sums = [node for node, _ in nodes_of(path) if node.name == "add"]
        assert [node.duration_micros for node in sums] == [1, 0, 0]
        lengths = sorted(end - begin for _, _, begin, end, _, _ in events[rank])
        exact = sorted(node.seconds for node in read_chakra(path)[1] if node.name != "untraced")
        assert exact == pytest.approx([1e-9 * length for length in lengths])
        spent = sum(has["duration_ns"] for node, has in nodes_of(path) if node.type == 4)
        micros = sum(node.duration_micros for node, _ in nodes_of(path) if node.type == 4)
        assert micros == -(-spent // 1000)


def test_a_chakra_trace_has_the_collectives_of_the_library(tmp_path):
    write_chakra(tmp_path, selection([[(0, "native broadcast", 2000, 5000, -1, 8)]]))
    gap, (node, has) = nodes_of(tmp_path / "hpcdl.0.et")
    assert gap[0].duration_micros == node.start_time_micros == 2
    assert (node.type, node.duration_micros, [*node.data_deps]) == (7, 3, [1])  # COMM_COLL_NODE
    assert (has["comm_type"], has["comm_size"]) == (5, 8)  # BROADCAST


def test_a_collective_of_the_library_has_no_goal_schedule(tmp_path):
    """The message names steps without one: 1 and 2 of steps that begin at 0, 10, 20 and 30 ns."""
    chosen = selection([[(0, "native allreduce", 0, 5, -1, 8)]])
    with pytest.raises(ValueError, match=r"case calls 'native allreduce', .* in every step"):
        write_goal(tmp_path / "x.goal", chosen)
    native = [(0, "native allreduce", at, at + 5, -1, 8) for at in (3, 31)]
    events = selection([native, [(0, "update", 0, 9, -1, 0)]])
    begins = np.array([*range(0, 40, 10)] * 2)
    steps = pd.DataFrame({"rank": [0] * 4 + [1] * 4, "step": begins // 10, "begin": begins, "end": begins + 9})
    with pytest.raises(ValueError, match="leave its steps out: --steps 1-2"):
        write_goal(tmp_path / "x.goal", replace(events, steps=steps))
    between = selection([[(0, "native allreduce", 9, 10, -1, 8)], [(0, "update", 0, 9, -1, 0)]])
    with pytest.raises(ValueError, match="leave its steps out: --steps 1-3"):  # not 0-3, with what is between
        write_goal(tmp_path / "x.goal", replace(between, steps=steps))
