"""Events of virtual time have the times, peers and programs of what they record."""

from dataclasses import replace

import numpy as np
import pytest
from contract.virtual_time import NETWORK, SIZE, buffer, close, seconds

from hpcdl.fabric.virtual.simulated import simulated


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
    for mine in events:
        assert sorted({event[:2] for event in mine}) == [
            *enumerate(["main", "first", "second", "third", "fourth"])
        ]


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
