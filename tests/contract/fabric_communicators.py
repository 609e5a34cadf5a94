"""Contract of :class:`hpcdl.fabric.comm.Comm`: communicators, the library's collectives, temporary vectors."""

import numpy as np
import pytest

from contract.fabric import sides, total
from contract.fabric_programs import Mistake


def test_split_twice(fabric):
    async def program(comm):
        half = await comm.split(comm.rank % 2)
        quarter = await half.split(half.rank % 2, -half.rank)
        members = [r for r in range(comm.size) if r % 4 == comm.rank % 4][::-1]
        assert (quarter.rank, quarter.size) == (members.index(comm.rank), len(members))
        left, right = sides(quarter)
        sending = quarter.start(quarter.send(np.zeros(1), right), shared_tags=True)
        assert (await quarter.recv(np.zeros(1))).source == left, "ranks are those within the communicator"
        await sending
        tasks = [c.start(total(c, comm.rank)) for c in (comm, half, quarter)]
        return [await task for task in reversed(tasks)]

    everybody = range(fabric.ranks)
    assert fabric.run(program) == [
        [sum(r for r in everybody if r % step == rank % step) for step in (4, 2, 1)] for rank in everybody
    ]


def test_concurrent_programs_on_a_communicator_and_its_part(fabric):
    """Each communicator has its own tag spaces, also for programs that send on both."""

    async def program(comm):
        part = await comm.split(comm.rank % 2)
        tasks = [
            comm.start(total(part, 1)),
            part.start(total(part, 10)),
            comm.start(total(comm, 100)),
            part.start(total(comm, 1000)),
            part.start(total(part, 10_000)),
        ]
        both = await total(comm, -1), await total(part, -10)
        order = np.random.default_rng(comm.rank).permutation(5)
        sums = {k: await tasks[k] for k in order}
        return both, [sums[k] for k in range(5)], part.size

    p = fabric.ranks
    for rank, (both, sums, size) in enumerate(fabric.run(program)):
        assert size == (p + 1 - rank % 2) // 2
        assert both == (-p, -10 * size)
        assert sums == [size, 10 * size, 100 * p, 1000 * p, 10_000 * size]


def test_split_inside_a_started_program(fabric):
    async def regroup(comm):
        part = await comm.split(comm.rank // 2)
        return await total(part, 1)

    async def program(comm):
        tasks = [comm.start(regroup(comm)), comm.start(total(comm, 1))]
        return [await task for task in tasks]

    p = fabric.ranks
    assert fabric.run(program) == [[min(2, p - rank // 2 * 2), p] for rank in range(p)]


# the library's collectives


SUMS = ["allreduce", "nonblocking allreduce", "reduce_scatter allgather"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("collective", SUMS)
def test_native_collectives_sum_in_place_and_unknown_ones_are_refused(fabric, collective, dtype):
    async def program(comm):
        buffer = np.arange(5, dtype=dtype) + comm.rank
        await comm.native(collective, buffer)
        await comm.native(collective, np.empty(0, dtype))
        with pytest.raises(ValueError, match="no native collective 'alltoall'"):
            await comm.native("alltoall", buffer)
        part, ones = await comm.split(comm.rank % 2), np.ones(1, dtype)
        await part.native(collective, ones)
        assert ones[0] == part.size
        return buffer.tolist()

    p = fabric.ranks
    assert fabric.run(program) == [[i * p + p * (p - 1) // 2 for i in range(5)]] * p


@pytest.mark.parametrize("collective", SUMS)
def test_native_collectives_inside_started_programs(fabric, collective):
    async def both(comm, value):
        buffer = np.full(3, float(value))
        await comm.native(collective, buffer)
        return buffer[0]

    async def program(comm):
        tasks = [comm.start(both(comm, 10**k)) for k in range(4)]
        own = np.array([comm.rank])
        await comm.native(collective, own)
        await comm.start(comm.native("barrier", own))
        return [await task for task in reversed(tasks)], own[0]

    p = fabric.ranks
    assert fabric.run(program) == [([1000 * p, 100 * p, 10 * p, p], p * (p - 1) // 2)] * p


def test_native_collectives_while_a_message_is_under_way(group):
    """On one rank only; the others call with nothing in flight."""

    async def program(comm):
        buffer, own = np.full(500_000, 3.0), np.ones(1)
        push = comm.start(comm.send(buffer, 1), shared_tags=True) if comm.rank == 0 else None
        await comm.native("barrier", own)
        await comm.native("allreduce", own)
        if comm.rank == 1:
            buffer[:] = 0
            await comm.recv(buffer, 0)
        if push is not None:
            await push
        return own[0], buffer[-1]

    assert group.run(program) == [(group.ranks, 3)] * group.ranks


# scratch


def test_scratch_is_reused_by_the_next_caller_also_after_an_error(fabric):
    async def program(comm):
        like = np.zeros(1, np.float32)
        with comm.scratch(10, like) as first, comm.scratch(10, like) as second:
            assert not np.shares_memory(first, second)
            assert (first.shape, first.dtype) == ((10,), np.float32)
            places = {array.ctypes.data for array in (first, second)}
        with comm.scratch(10, like) as again, comm.scratch(10, like.astype(float)) as other:
            assert again.ctypes.data in places
            assert (other.shape, other.dtype) == ((10,), np.float64)
        with comm.scratch(0, like) as empty:
            assert empty.size == 0
        with pytest.raises(Mistake), comm.scratch(3, like) as first:
            raise Mistake
        with comm.scratch(3, like) as again:
            assert again is first

    fabric.run(program)
