"""Deadlocks, lost peers and the order of events, which only one process with all ranks can observe."""

from functools import partial

import numpy as np
import pytest

from hpcdl.fabric.comm import PeerLost
from hpcdl.fabric.virtual.groups import Mailbox, hold
from hpcdl.fabric.virtual.inprocess import in_process
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


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deadlock_tells_what_each_rank_waits_for(seed):
    for ranks, program, lines in [
        (2, facing, ["sends to rank 1, tag 7, 3 elements", "sends to rank 0, tag 7, 3 elements"]),
        (2, apart, ["receives from rank 1, tag 3, 2 elements", "sends to rank 0, tag 3, 2 elements"]),
        (5, around, [f"receives from rank {(r - 1) % 5}, any tag, {r} elements" for r in range(5)]),
    ]:
        assert report(ranks, program, seed) == [f"rank {rank} {line}" for rank, line in enumerate(lines)]


@pytest.mark.parametrize("collective", ["barrier", "allreduce", "split"])
def test_a_collective_that_one_rank_does_not_call(collective):
    waiting = [f"is in {'native ' * (collective != 'split')}{collective}; ranks [2] have not called it"] * 4
    waiting[2] = "receives from rank 0, any tag, 1 elements"
    found = report(4, partial(missed, collective=collective))
    assert found == [f"rank {rank} {line}" for rank, line in enumerate(waiting)]


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
