"""Contract of :class:`hpcdl.fabric.comm.Comm`: started programs, errors and results."""

import numpy as np
import pytest

from contract.fabric import shift, total


def test_started_programs_complete_without_being_awaited(fabric):
    finished = []

    async def work(comm):
        await total(comm, 1)
        finished.append(comm.rank)

    async def program(comm):
        comm.start(work(comm))
        return comm.rank

    mine = fabric.run(program)
    assert mine == list(range(fabric.ranks))
    assert sorted(finished) == fabric.local(mine)


def test_programs_started_in_the_middle_of_others(fabric):
    """The first of several programs to start another one depends on the interleaving, so on the rank."""

    async def outer(comm, steps):
        for _ in range(steps):
            await shift(comm, 1)
        nested = comm.start(total(comm, 100 * steps))
        mine = await total(comm, steps)
        again = comm.start(total(comm, 10_000 * steps))
        return mine, await nested, await again

    async def program(comm):
        steps = [3, 1, 2, 1, 3]
        under_way = [comm.start(outer(comm, k)) for k in steps]
        return [await task for task in under_way]

    p = fabric.ranks
    assert fabric.run(program) == [[(k * p, 100 * k * p, 10_000 * k * p) for k in (3, 1, 2, 1, 3)]] * p


def test_three_levels_of_started_programs_and_no_more(fabric):
    async def nest(comm, level):
        work = nest(comm, level + 1)
        if level == 3:
            with pytest.raises(ValueError, match="more than 3 deep"):
                comm.start(work)
            work.close()
            return await total(comm, level)
        return await total(comm, level) + await comm.start(work)

    async def program(comm):
        under_way = [comm.start(nest(comm, 1)), comm.start(nest(comm, 1))]
        return [await task for task in under_way]

    assert fabric.run(program) == [[6 * fabric.ranks] * 2] * fabric.ranks


def test_two_programs_may_wait_for_the_same_one_again_and_again(fabric):
    async def wait(task):
        return await task

    async def program(comm):
        task = comm.start(total(comm, 1))
        waiting = [comm.start(wait(task)), comm.start(wait(task))]
        return [*[await other for other in (*waiting, task, task)], task.result, task.done]

    assert fabric.run(program) == [[fabric.ranks] * 5 + [True]] * fabric.ranks


def test_shared_tags_do_not_change_the_numbering(group):
    """After a push with shared tags the next program has the same tag space as on other ranks."""

    async def program(comm):
        if comm.rank == 0:
            for peer in range(1, comm.size):
                await comm.recv(np.zeros(1), peer, 6)
            push = None
        else:
            push = comm.start(comm.send(np.zeros(1), 0, 6), shared_tags=True)
        task = comm.start(total(comm, 1))
        result = await task
        if push is not None:
            await push
        return result

    assert group.run(program) == [group.ranks] * group.ranks


def test_shared_tags_inside_a_started_program(group):
    async def outer(comm):
        if comm.rank == 0:
            buffer = np.zeros(1)
            for peer in range(1, comm.size):
                await comm.recv(buffer, peer, 1)
                assert buffer[0] == peer
        else:
            await comm.start(comm.send(np.array([float(comm.rank)]), 0, 1), shared_tags=True)

    async def program(comm):
        await comm.start(outer(comm))

    group.run(program)


def test_programs_of_one_with_shared_tags_are_kept_apart_too(fabric):
    async def starter(comm):
        return await comm.start(total(comm, 10))

    async def program(comm):
        sharing = comm.start(starter(comm), shared_tags=True)
        task = comm.start(total(comm, 1))
        return await task, await sharing

    assert fabric.run(program) == [(fabric.ranks, 10 * fabric.ranks)] * fabric.ranks


# errors and results


class Mistake(Exception):
    pass


async def fail(comm, after=None):
    if after is not None:
        await total(comm, after)
    raise Mistake("mine")


@pytest.mark.parametrize("after", [None, 1])
def test_a_started_program_raises_where_it_is_awaited(fabric, after):
    async def program(comm):
        task = comm.start(fail(comm, after))
        with pytest.raises(Mistake, match="mine"):
            await task
        return await total(comm, 1)

    assert fabric.run(program) == [fabric.ranks] * fabric.ranks


@pytest.mark.parametrize(("started", "after"), [(True, None), (True, 1), (False, 1)])
def test_a_program_that_fails_ends_the_run(fabric, started, after):
    """The main one, and a started one before it is awaited."""

    async def program(comm):
        if not started:
            await fail(comm, after)
        comm.start(fail(comm, after))
        for _ in range(10):
            await comm.compute("layer", lambda: None)

    with pytest.raises(Mistake, match="mine"):
        fabric.run(program)


def test_compute_returns_or_raises_what_the_work_does(fabric):
    def work():
        raise Mistake("in the work")

    async def inside(comm):
        return await comm.compute("inner", lambda: comm.rank * 2)

    async def program(comm):
        task = comm.start(inside(comm))
        with pytest.raises(Mistake, match="in the work"):
            await comm.compute("work", work)
        return await comm.compute("outer", lambda: (comm.rank, "done")), await task

    assert fabric.run(program) == [((rank, "done"), 2 * rank) for rank in range(fabric.ranks)]
