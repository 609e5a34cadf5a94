"""What only one process with all ranks can observe: deadlocks, lost peers, the order of events, virtual time.

Links of simulated networks have round numbers here.
"""

import random
import tracemalloc
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from contract.virtual_time import ALPHA, BETA, GAMMA, MESSAGE, NETWORK, SIZE, buffer, close, seconds

from hpcdl.aggregation.butterfly import butterfly
from hpcdl.aggregation.halving_doubling import halving_doubling
from hpcdl.aggregation.native import native
from hpcdl.aggregation.ring import ring
from hpcdl.fabric.comm import PeerLost
from hpcdl.fabric.network import NETWORKS, Link, Network
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.clocks import in_process, simulated
from hpcdl.fabric.virtual.comm import COLLECTIVES, VirtualComm
from hpcdl.fabric.virtual.groups import Mailbox, hold
from hpcdl.fabric.virtual.world import Deadlock

SEEDS = range(5)


def report(ranks, program, seed=0):
    """The lines of the deadlock report."""
    with pytest.raises(Deadlock) as caught:
        in_process(ranks, seed).run(program)
    first, *lines = str(caught.value).splitlines()
    assert first == "deadlock: no rank can go on"
    return [line.strip() for line in lines]


def test_messages_that_wait_are_told_in_the_order_of_posting():
    mailbox = Mailbox()
    for number, tag in enumerate((3, 1, 3, 2)):
        hold(mailbox.sends, (0, tag), (number, None, 0, 1, tag, np.zeros(1)))
    assert [post.tag for _, post in mailbox.posts()] == [3, 1, 3, 2]


async def facing(comm):
    await comm.send(np.zeros(3), 1 - comm.rank, 7)  # an MPI library's eager buffers would hide this
    await comm.recv(np.zeros(3), 1 - comm.rank, 7)


async def around(comm):
    await comm.recv(np.zeros(comm.rank), (comm.rank - 1) % comm.size)
    await comm.send(np.zeros(1), (comm.rank + 1) % comm.size)


async def apart(comm):
    """Receive within a started program, and send from the main one."""
    await (comm.send(np.zeros(2), 0, 3) if comm.rank else comm.start(comm.recv(np.zeros(2), 1, 3)))


async def missed(comm, collective):
    if comm.rank == 2:
        await comm.recv(np.zeros(1), 0)
    await (comm.split(0) if collective == "split" else comm.native(collective, np.zeros(1)))


def in_vain(collective):
    return f"is in {'native ' * (collective != 'split')}{collective}; ranks [2] have not called it"


NEVER_SENT = "receives from rank 0, any tag, 1 elements"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deadlock_tells_what_each_rank_waits_for(seed):
    for ranks, program, lines in [
        (2, facing, ["sends to rank 1, tag 7, 3 elements", "sends to rank 0, tag 7, 3 elements"]),
        (2, apart, ["receives from rank 1, tag 3, 2 elements", "sends to rank 0, tag 3, 2 elements"]),
        (5, around, [f"receives from rank {(r - 1) % 5}, any tag, {r} elements" for r in range(5)]),
        *(
            (3, partial(missed, collective=name), [in_vain(name)] * 2 + [NEVER_SENT])
            for name in ("barrier", "split")
        ),
    ]:
        assert report(ranks, program, seed) == [f"rank {rank} {line}" for rank, line in enumerate(lines)]


async def collectives(comm):
    await comm.native("barrier" if comm.rank else "allreduce", np.zeros(1))


async def alone(comm):
    await (comm.recv(np.zeros(1), 1) if comm.rank == 0 else comm.compute("other work", lambda: None))


async def failing(comm):
    if comm.rank == 1:
        raise RuntimeError("the cause")
    await comm.recv(np.zeros(1), 0 if comm.rank else 2)


async def too_long(comm):
    await (comm.recv(np.zeros(4), 0) if comm.rank else comm.send(np.zeros(5), 1))


async def of_another_type(comm):
    await comm.exchange(np.zeros(4), 1 - comm.rank, np.zeros(4, np.float32), 1 - comm.rank)


@pytest.mark.parametrize(
    ("ranks", "program", "error", "message"),
    [
        (3, collectives, ValueError, r"calls native .* where others call native"),
        (2, alone, PeerLost, "rank 1 is gone: rank 0 receives from rank 1"),
        (3, failing, RuntimeError, "the cause"),  # rather than the deadlock that it causes
        (2, too_long, ValueError, "message of 5 elements from rank 0 does not fit the 4 that rank 1 has room for"),
        (2, of_another_type, ValueError, r"rank \d sent float64, rank \d expected float32"),
    ],
)
def test_an_error_ends_the_run(ranks, program, error, message):
    with pytest.raises(error, match=message):
        in_process(ranks).run(program)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_peer_that_has_ended_is_lost(seed):
    async def program(comm):
        if comm.rank == 1:
            return None
        with pytest.raises(PeerLost, match="rank 1 is gone") as caught:
            if comm.rank == 0:
                await comm.recv(np.zeros(1), 1)
            else:
                await comm.send(np.zeros(1), 1)
        return caught.value.rank

    assert in_process(3, seed).run(program) == [1, None, 1]


def interleaving(seed, ranks=5):
    """In which order ranks get through their own steps, and messages come in."""
    order = []

    async def program(comm):
        for step in range(4):
            await comm.compute("step", lambda step=step: order.append((comm.rank, step)))
        if comm.rank == 0:
            arrivals = [(await comm.recv(np.zeros(1))).source for _ in range(1, comm.size)]
            order.extend(arrivals)
        else:
            await comm.send(np.zeros(1), 0)

    in_process(ranks, seed).run(program)
    return tuple(order)


def test_the_same_seed_gives_the_same_interleaving_and_other_seeds_give_others():
    seen = {interleaving(seed) for seed in range(20)}
    assert seen == {interleaving(seed) for seed in range(20)}
    assert len(seen) == 20
    assert len({order[-4:] for order in seen}) > 10  # arrivals too


def test_messages_and_bytes_are_counted_where_they_are_sent():
    async def program(comm):
        part = await comm.split(0, -comm.rank)
        if comm.rank == 0:
            await comm.send(np.zeros(10, np.float32), 1)
            await part.send(np.zeros(0), 1)
        elif comm.rank == 1:
            await comm.recv(np.zeros(20, np.float32), 0)
            await part.recv(np.zeros(1), 2)
        await comm.native("allreduce", np.zeros(100))
        await comm.start(comm.exchange(np.zeros(3), comm.rank, np.zeros(3), comm.rank))

    world = in_process(3)
    world.run(program)
    assert world.messages == [3, 1, 1]
    assert world.bytes == [40 + 24, 24, 24]


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


@pytest.mark.parametrize("late", [0.0, 10 * ALPHA])
def test_latencies_of_messages_to_one_host_overlap_and_overheads_do_not(late):
    """A message that has come before it is asked for costs its overhead and bytes alone."""
    overhead, senders = ALPHA / 10, 4

    async def program(comm):
        if comm.rank:
            await comm.send(buffer(), 0)
        else:
            await comm.compute("late", lambda: None)
            ranks = range(1, senders + 1)
            for receive in [comm.start(comm.recv(buffer(), rank, 0), shared_tags=True) for rank in ranks]:
                await receive

    network = replace(NETWORK, link=replace(NETWORK.link, overhead=overhead))
    occupied = overhead + SIZE * BETA
    first = late + occupied if late else MESSAGE
    time = seconds(1 + senders, program, network, compute=lambda _rank, _label: late)
    assert time == close(first + (senders - 1) * occupied)


def test_farther_hosts_cost_more_by_each_doubling_of_the_distance():
    async def program(comm, other):
        if comm.rank in (0, other):
            await comm.exchange(buffer(), other - comm.rank, buffer(), other - comm.rank)

    far = replace(NETWORK.link, distance_alpha=ALPHA, distance_beta=BETA)
    line = replace(NETWORK, link=far)
    torus = replace(line, grids=((4, 4), (2, 8)))  # the first with enough places
    for other, on_line, on_torus in (
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 1),
        (4, 4, 1),
        (8, 8, 2),
        (10, 6, 2),
        (15, 1, 1),
    ):
        for network, distance in ((line, on_line), (torus, on_torus)):
            time = seconds(16, partial(program, other=other), network)
            assert time == close(MESSAGE * (1 + np.log2(distance)))


def test_ranks_are_where_the_network_says():
    network = replace(NETWORK, hosts=(0, 1, 0), ranks_per_host=2)
    assert [network.host(rank) for rank in range(7)] == [0, 1, 0, 2, 2, 3, 3]
    assert [NETWORK.on(3).host(rank) for rank in range(7)] == [0, 0, 0, 1, 1, 1, 2]
    assert [NETWORK.on(3).ring_costs(ranks) for ranks in (3, 4)] == [(ALPHA / 10, BETA / 100), (ALPHA, BETA)]


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
            assert clock.message(float(now), source, dest, size, float(now)) == begin + 1 + size
            carried["out", source].append((begin, begin + 1 + size))
            carried["in", dest].append((begin, begin + 1 + size))


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_native_collectives_cost_what_good_algorithms_cost(ranks):
    def taken(collective, size):
        return seconds(ranks, lambda comm: comm.native(collective, buffer(size)))

    steps, long = np.log2(ranks), 4 * ranks * 10**6
    assert taken("barrier", SIZE) == close(steps * ALPHA)
    stated = seconds(ranks, lambda comm: halving_doubling(comm, buffer(long)))
    assert taken("allreduce", long) == close(stated)
    assert taken("allreduce", 4) == close(steps * (ALPHA + 4 * BETA + 4 * GAMMA))


@pytest.mark.parametrize("size", [8, 1 << 20])
@pytest.mark.parametrize("ranks_per_host", [1, 2, 8])
@pytest.mark.parametrize("name", ["ethernet-1g", "infiniband-hdr", "nvlink-4"])
def test_a_native_allreduce_is_as_fast_as_algorithms_on_any_hosts(name, ranks_per_host, size):
    """Up to a tenth: the sums of one rank may take place during the messages of another one of its host."""
    network, hosts = NETWORKS[name].on(ranks_per_host), 8 // ranks_per_host
    times = [seconds(8, lambda comm, scheme=scheme: scheme(comm, buffer(size)), network) for scheme in
             (native, ring, butterfly, halving_doubling)]  # fmt: skip
    assert times[0] <= 1.1 * min(times[1:])
    link, share = (network.link, 1 - 1 / hosts) if hosts > 1 else (network.inside, 1 - 1 / 8)
    assert times[0] >= 2 * share * size * link.beta
    if hosts == 1:
        assert times[0] == close(min(times[1:]))


@pytest.mark.parametrize("collective", sorted({*COLLECTIVES} - {"all_to_all", "alltoallv"}))
def test_native_collectives_take_the_time_between_hosts_if_nothing_else_takes_any(collective):
    """The hosts have 3, 1 and 2 ranks."""
    network = replace(NETWORK, inside=Link(0.0, 0.0), gamma=0.0)
    for size in (4, 12_000_000):
        program = partial(VirtualComm.native, collective=collective, buffer=buffer(size))
        assert seconds(6, program, replace(network, hosts=(0, 0, 0, 1, 2, 2))) == close(
            seconds(3, program, network)
        )


def test_ranks_of_a_host_are_as_busy_in_an_alltoallv_as_the_busiest_one():
    """Three of them send to three others each, one message after another through one port."""
    program = partial(VirtualComm.native, collective="alltoallv", buffer=buffer(5 * SIZE))
    assert seconds(6, program, replace(NETWORK, hosts=(0, 0, 0, 1, 2, 2))) == close(9 * MESSAGE)


def test_native_collectives_of_communicators_that_share_hosts_take_turns():
    network = replace(NETWORK.on(3), inside=Link(0.0, 0.0))
    for color, turns in ((lambda rank: rank % 3, 3), (lambda rank: rank // 3, 0)):

        async def program(comm, color=color):
            await (await comm.subcommunicator(color, "part")).native("broadcast", buffer())

        ended = seconds(6, program, network)
        assert ended == close(turns * MESSAGE)


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


def test_the_halves_of_an_exchange_have_their_own_ends_and_the_peers_of_the_case():
    """Around a ring of three in which rank 2 comes late: rank 0 waits for it, and has sent long before.

    In a sub-communicator in which the ranks are in reverse order.
    """

    async def program(comm):
        part = await comm.split(0, -comm.rank)
        await comm.compute("forward", lambda: None)
        await part.exchange(buffer(), (part.rank - 1) % 3, buffer(), (part.rank + 1) % 3)

    events = [[], [], []]
    seconds(3, program, compute=lambda rank, _label: 1.0 if rank == 2 else 0.25, events=events)
    found = [{label: (end, peer) for _, label, _, end, peer, _ in mine if peer >= 0} for mine in events]
    early, late = 255_000_000, 1_005_000_000
    assert found == [
        {"recv": (late, 2), "send": (early, 1)},
        {"recv": (early, 0), "send": (late, 2)},
        {"recv": (late, 1), "send": (late, 0)},
    ]
