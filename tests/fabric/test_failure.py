"""A rank fails: operations that need it raise PeerLost, all others go on."""

import pytest
from contract.losses import lost, number

from hpcdl.fabric.comm import ANY, PeerLost
from hpcdl.fabric.faults import RankFailed

from .conftest import world


@pytest.fixture(params=["simulated", *(f"seed {seed}" for seed in range(8))])
def world_of(request):
    return lambda ranks: world(ranks, request.param)


def test_operations_with_a_dead_rank_raise_before_and_after_its_death(world_of):
    async def program(comm):
        if comm.rank == 1:
            raise RankFailed
        first = {
            0: lambda: comm.recv(number(), 1),
            2: lambda: comm.send(number(), 1),
            3: lambda: comm.exchange(number(), 0, number(), 1),
        }
        told = [await lost(first[comm.rank]())]
        told.append(await lost(comm.send(number(), 1)))
        told.append(await lost(comm.native("allreduce", number())))
        # the living talk as before; what the exchange had posted was withdrawn
        if comm.rank == 0:
            await comm.send(number(7), 3)
        elif comm.rank == 3:
            got = number()
            await comm.recv(got, 0)
            told.append(int(got[0]))
        return told

    assert world_of(4).run(program) == [[1, 1, 1], None, [1, 1, 1], [1, 1, 1, 7]]


def test_a_receive_from_anybody_tells_of_each_death_once(world_of):
    """A server that counts messages and deaths gets all of both."""

    async def program(comm):
        if comm.rank == 0:
            came, dead = [], []
            while len(came) + len(dead) < 6:
                try:
                    status = await comm.recv(number(), ANY)
                except PeerLost as loss:
                    dead.append(loss.rank)
                else:
                    came.append(status.source)
            return sorted(came), sorted(dead)
        await comm.send(number(), 0)
        if comm.rank in (1, 3):
            raise RankFailed
        return None

    assert world_of(5).run(program)[0] == ([1, 2, 3, 4], [1, 3])


def test_what_a_dead_rank_had_started_is_dead_too(world_of):
    async def push(comm):
        await comm.compute("late", lambda: None)
        await comm.send(number(1), 0, 5)

    async def program(comm):
        if comm.rank == 0:
            return await lost(comm.recv(number(), 1, 5))
        comm.start(push(comm), shared_tags=True)
        raise RankFailed

    assert world_of(2).run(program)[0] == 1


def test_survivors_work_together(world_of):
    """Whenever they call, and whether or not they have noticed."""

    async def program(comm):
        if comm.rank == 2:
            await comm.compute("work", lambda: None)
            raise RankFailed
        for _ in range(comm.rank):
            await comm.compute("work", lambda: None)
        living = await comm.survivors()
        total = number(comm.rank)
        await living.native("allreduce", total)
        return living.rank, living.size, total[0]

    # a death may come after all others have called: then they wait for the one that is about to die
    assert world_of(5).run(program) == [(0, 4, 8.0), (1, 4, 8.0), None, (2, 4, 8.0), (3, 4, 8.0)]
