"""Virtual time: what a network model says a program takes, and its events. Links here have round numbers."""

import random
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from contract.virtual_time import ALPHA, BETA, GAMMA, MESSAGE, NETWORK, SIZE, buffer, close, seconds

from hpcdl.aggregation.halving_doubling import halving_doubling
from hpcdl.aggregation.ring import ring
from hpcdl.fabric.network import Link, Network
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.simulated import simulated


def test_ranks_of_one_host_share_its_port_to_the_network():
    """Ranks 0, 1 and 2, 3 share hosts; both pairs talk over the one cable. Inside, every rank has its own."""

    async def across(comm):
        if comm.rank < 2:
            await comm.send(buffer(), comm.rank + 2)
        else:
            await comm.recv(buffer(), comm.rank - 2)

    async def within(comm):
        partner = comm.rank ^ 1
        await comm.exchange(buffer(), partner, buffer(), partner)

    assert seconds(4, across, NETWORK.on(2)) == close(2 * MESSAGE)
    assert seconds(4, across, NETWORK.on(1)) == close(MESSAGE)
    assert seconds(4, within, NETWORK.on(4)) == close(ALPHA / 10 + SIZE * BETA / 100)


def test_ranks_are_where_the_network_says():
    network = replace(NETWORK, hosts=(0, 1, 0), ranks_per_host=2)
    assert [network.host(rank) for rank in range(7)] == [0, 1, 0, 2, 2, 3, 3]
    assert [NETWORK.on(3).host(rank) for rank in range(7)] == [0, 0, 0, 1, 1, 1, 2]


def test_one_processor_does_one_thing_at_a_time():
    """Two programs of one rank compute one after the other; a message travels meanwhile."""

    async def work(comm):
        await comm.compute("work", lambda: None)

    async def talk(comm):
        await comm.exchange(buffer(), 1 - comm.rank, buffer(), 1 - comm.rank)

    async def program(comm):
        tasks = [comm.start(work(comm)), comm.start(work(comm)), comm.start(talk(comm))]
        for task in tasks:
            await task

    assert seconds(2, program, compute=lambda *_: 0.25) == close(0.5)
    assert seconds(2, program, compute=lambda *_: MESSAGE / 4) == close(MESSAGE)


def test_what_is_started_after_a_reduction_begins_after_it():
    async def program(comm):
        if comm.rank == 0:
            await comm.add(buffer(), buffer())
            await comm.start(comm.send(buffer(), 1), shared_tags=True)
        else:
            await comm.recv(buffer(), 0)

    assert seconds(2, program) == close(SIZE * GAMMA + MESSAGE)


def test_a_message_goes_before_one_that_waits_for_its_other_port():
    """0 and 1 both send to 2, which takes 0's first; meanwhile 1's port is free for what it sends to 3."""

    async def program(comm):
        works = {
            0: [comm.send(buffer(), 2)],
            1: [comm.send(buffer(), 2), comm.send(buffer(), 3)],
            2: [comm.recv(buffer(), 0, tag=0), comm.recv(buffer(), 1, tag=0)],
            3: [comm.recv(buffer(), 1, tag=0)],
        }[comm.rank]
        for task in [comm.start(work, shared_tags=True) for work in works]:
            await task

    assert seconds(4, program) == close(2 * MESSAGE)


def test_every_message_goes_at_the_first_moment_at_which_it_fits():
    """Long and short ones, in whole seconds, beside a plain search among all that the two ports have carried."""
    for seed in range(40):
        chance = random.Random(seed)
        ranks, sizes = chance.randint(2, 6), chance.sample(range(12), chance.randint(1, 4))
        clock = simulated(ranks, Network("whole", Link(1.0, 1.0), source="none")).clock
        carried = {(way, rank): [] for way in ("in", "out") for rank in range(ranks)}
        now = 0
        for _ in range(200):
            now += chance.choice([0, 0, 0, 1, 7])
            source, dest = chance.sample(range(ranks), 2)
            size = chance.choice(sizes)
            both = carried["out", source] + carried["in", dest]
            moments = [now, *(end for _, end in both if end > now)]
            begin = min(m for m in moments if all(m + 1 + size <= start or m >= end for start, end in both))
            assert clock.message(float(now), source, dest, size) == begin + 1 + size
            carried["out", source].append((begin, begin + 1 + size))
            carried["in", dest].append((begin, begin + 1 + size))


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_native_collectives_cost_what_good_algorithms_cost(ranks):
    async def barrier(comm):
        await comm.native("barrier", buffer())

    async def allreduce(comm, size):
        await comm.native("allreduce", buffer(size))

    steps = np.log2(ranks)
    assert seconds(ranks, barrier) == close(steps * ALPHA)
    long = 4 * ranks * 10**6
    stated = seconds(ranks, lambda comm: halving_doubling(comm, buffer(long)))
    assert seconds(ranks, lambda comm: allreduce(comm, long)) == close(stated)
    assert seconds(ranks, lambda comm: allreduce(comm, 4)) == close(steps * (ALPHA + 4 * BETA + 4 * GAMMA))


def test_phantoms_allocate_nothing():
    payload = phantom(10**12)
    for _ in range(2):  # the first time numpy and asyncio's machinery warm up
        tracemalloc.start()
        seconds(16, lambda comm: ring(comm, payload))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 10**6


def test_events_have_their_times():
    async def push(comm):
        await comm.send(buffer(), 1, 3)

    async def program(comm):
        if comm.rank == 0:
            await comm.compute("forward", lambda: None)
            await comm.start(push(comm), shared_tags=True)
            await comm.exchange(buffer(), 0, buffer(), 0)
        else:
            await comm.recv(buffer(2 * SIZE), 0)
            await comm.add(buffer(), buffer())
        await comm.native("barrier", buffer(0))

    # in ns: a message takes 5 ms, a message to oneself 0.14 ms, the reduction 0.4 ms, a barrier of two 1 ms
    events = [[], []]
    seconds(2, program, compute=lambda *_: 0.25, events=events)
    assert events == [
        [
            (0, "forward", 0, 250_000_000, -1, 0),
            (1, "send", 250_000_000, 255_000_000, 1, SIZE),
            (0, "recv", 255_000_000, 255_140_000, 0, SIZE),
            (0, "send", 255_000_000, 255_140_000, 0, SIZE),
            (0, "native barrier", 255_140_000, 256_400_000, -1, 0),
        ],
        [
            (0, "recv", 0, 255_000_000, 0, SIZE),
            (0, "add", 255_000_000, 255_400_000, -1, SIZE),
            (0, "native barrier", 255_400_000, 256_400_000, -1, 0),
        ],
    ]


def test_arithmetic_of_an_exchange_costs_its_bytes_and_waits_for_no_layer():
    network = replace(NETWORK, gamma=1e-3)
    ends = {}

    async def apply(comm):
        assert await comm.apply("server update", lambda: 7, 500) == 7
        await comm.add(buffer(400), buffer(400))
        await comm.send(buffer(0), 1)
        ends["arithmetic"] = world.running.time

    async def program(comm):
        if comm.rank:
            await comm.recv(buffer(0), 0)
            return
        task = comm.start(apply(comm), shared_tags=True)
        await comm.compute("layer", lambda: None)
        ends["layer"] = world.running.time
        await task

    events = [[], []]
    world = simulated(2, network, compute=lambda _rank, _label: 5.0, events=events)
    world.run(program)
    assert ends == {"arithmetic": close(0.9 + network.link.alpha), "layer": close(5.0)}
    found = {label: (end - begin, size) for _, label, begin, end, _, size in events[0]}
    assert found["server update"] == (500_000_000, 500)
    assert found["add"] == (400_000_000, 400)


def test_work_without_a_modelled_time_is_refused():
    async def program(comm):
        await comm.compute("layer", lambda: None)

    with pytest.raises(ValueError, match="no time is known for work labelled 'layer'"):
        simulated(1, NETWORK).run(program)


def test_events_name_peers_by_their_rank_in_the_case():
    """Also in a sub-communicator, whose ranks have other numbers."""

    async def program(comm):
        part = await comm.split(comm.rank % 2)
        left, right = (part.rank - 1) % part.size, (part.rank + 1) % part.size
        await part.exchange(np.zeros(1), right, np.zeros(1), left)

    events = [[] for _ in range(6)]
    seconds(6, program, events=events)
    peers = [{label: peer for _, label, _, _, peer, _ in one if peer >= 0} for one in events]
    assert peers == [{"recv": (rank - 2) % 6, "send": (rank + 2) % 6} for rank in range(6)]


def test_events_name_the_started_program():
    async def shift(comm, label):
        await comm.compute(label, lambda: None)

    async def outer(comm):
        await shift(comm, "second")
        await comm.start(shift(comm, "third"))

    async def program(comm):
        tasks = [comm.start(shift(comm, "first")), comm.start(outer(comm))]
        await shift(comm, "main")
        for task in tasks:
            await task
        await comm.start(shift(comm, "fourth"), shared_tags=True)

    events = [[], []]
    seconds(2, program, events=events)
    expected = set(enumerate(["main", "first", "second", "third", "fourth"]))
    assert [{event[:2] for event in mine} for mine in events] == [expected] * 2


def test_the_halves_of_an_exchange_have_their_own_ends():
    """Around a ring of three in which rank 2 comes late: rank 0 waits for it, and has sent long before."""

    async def program(comm):
        await comm.compute("forward", lambda: None)
        await comm.exchange(buffer(), (comm.rank + 1) % 3, buffer(), (comm.rank - 1) % 3)

    events = [[], [], []]
    seconds(3, program, compute=lambda rank, _label: 1.0 if rank == 2 else 0.25, events=events)
    ends = [{label: end for _, label, _, end, *_ in mine if label != "forward"} for mine in events]
    early, late = 255_000_000, 1_005_000_000
    assert ends == [{"recv": late, "send": early}, {"recv": early, "send": late}, {"recv": late, "send": late}]
