"""Contract of :class:`hpcdl.fabric.comm.Comm`, for every interpreter.

``fabric`` has ``ranks`` and ``run(program)``, which runs ``program(comm)`` on every rank and returns a list of
what each returned; ``group`` is one with at least two ranks. Timing is no matter here.
"""

import numpy as np
import pytest

from hpcdl.fabric.comm import ANY, Status

DTYPES = ["float32", "float64", "uint8", "int64", "uint16"]


def sides(comm):
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


async def shift(comm, value, tag=0):
    """Send ``value`` to the next rank; return the value received."""
    left, right = sides(comm)
    arrived = np.empty(1)
    await comm.exchange(np.array([float(value)]), right, arrived, left, tag)
    return arrived[0]


async def total(comm, value):
    """Return the sum over ranks, by passing each rank's value around."""
    carried = result = float(value)
    for _ in range(comm.size - 1):
        carried = await shift(comm, carried)
        result += carried
    return result


# one message


def test_a_receive_matches_its_send(group):
    async def program(comm):
        left, right = sides(comm)
        outgoing, incoming = np.arange(5.0) + comm.rank, np.zeros(5)
        if comm.rank == 0:
            await comm.send(outgoing, right, 3)
            status = await comm.recv(incoming, left, 3)
        else:
            status = await comm.recv(incoming, left, 3)
            await comm.send(outgoing, right, 3)
        assert status == Status(left, 3, 5)
        np.testing.assert_array_equal(incoming, np.arange(5.0) + left)

    group.run(program)


def test_a_buffer_may_be_changed_after_its_send(group):
    async def program(comm):
        if comm.rank == 0:
            buffer = np.full(100_000, 1.0)
            for peer in range(1, comm.size):
                await comm.send(buffer, peer)
                buffer += 1
            return 0
        buffer = np.zeros(100_000)
        await comm.recv(buffer, 0)
        assert (buffer == buffer[0]).all()
        return buffer[0]

    assert group.run(program) == [0, *range(1, group.ranks)]


def test_exchange_sends_and_receives(fabric):
    async def program(comm):
        left, right = sides(comm)
        incoming = np.zeros(7)
        status = await comm.exchange(np.full(4, comm.rank), right, incoming.view(np.int64), left, 9)
        assert status == Status(left, 9, 4)
        assert incoming.view(np.int64).tolist() == [left] * 4 + [0] * 3

    fabric.run(program)


def test_exchange_with_the_same_rank(fabric):
    async def meet_oneself(comm):
        incoming = np.zeros(1000)
        status = await comm.exchange(np.arange(1000.0), comm.rank, incoming, comm.rank, 2)
        assert status == Status(comm.rank, 2, 1000)
        return incoming.tolist() == list(range(1000))

    async def program(comm):
        started = comm.start(meet_oneself(comm))
        return await meet_oneself(comm) and await started

    assert all(fabric.run(program))


@pytest.mark.parametrize("inside", [False, True])
def test_a_short_message_leaves_the_rest_of_the_buffer(group, inside):
    async def talk(comm):
        if comm.rank == 0:
            for peer in range(1, comm.size):
                await comm.send(np.full(peer, 7.0), peer)
        else:
            buffer = np.zeros(comm.size + 3)
            status = await comm.recv(buffer, 0)
            assert status == Status(0, 0, comm.rank)
            assert buffer.tolist() == [7.0] * comm.rank + [0.0] * (comm.size + 3 - comm.rank)

    async def program(comm):
        await (comm.start(talk(comm)) if inside else talk(comm))

    group.run(program)


def test_messages_of_no_elements(fabric):
    async def talk(comm):
        left, right = sides(comm)
        nothing, untouched = np.empty(0), np.full(3, 5.0)
        assert await comm.exchange(nothing, right, untouched, left, 4) == Status(left, 4, 0)
        assert await comm.exchange(nothing, right, np.empty(0), left) == Status(left, 0, 0)
        assert untouched.tolist() == [5.0] * 3
        await comm.add(np.empty(0), nothing)

    async def program(comm):
        started = comm.start(talk(comm))
        await talk(comm)
        await started

    fabric.run(program)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_of_element(fabric, dtype):
    async def program(comm):
        left, right = sides(comm)
        limit = np.finfo(dtype).max if dtype.startswith("float") else np.iinfo(dtype).max
        outgoing = np.array([comm.rank, 1, limit], dtype)
        incoming = np.zeros(5, dtype)
        status = await comm.exchange(outgoing, right, incoming, left)
        assert status.count == 3
        np.testing.assert_array_equal(incoming, np.array([left, 1, limit, 0, 0], dtype))
        await comm.add(incoming[:2], outgoing[:2])
        assert incoming[:2].tolist() == [left + comm.rank, 2]

    fabric.run(program)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("tag", [0, 1, 255])
def test_tags_from_0_to_255(fabric, tag, inside):
    async def program(comm):
        left = sides(comm)[0]
        work = shift(comm, comm.rank, tag)
        assert await (comm.start(work) if inside else work) == left

    fabric.run(program)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("tag", [-1, 256])
def test_other_tags_are_refused(fabric, tag, inside):
    async def wrong(comm):
        buffer = np.zeros(1)
        with pytest.raises(ValueError, match=f"tag {tag} is not in 0..255"):
            await comm.send(buffer, comm.rank, tag)
        with pytest.raises(ValueError, match=f"tag {tag} is not in 0..255"):
            await comm.exchange(buffer, comm.rank, np.zeros(1), comm.rank, tag)

    async def program(comm):
        await (comm.start(wrong(comm)) if inside else wrong(comm))

    fabric.run(program)


@pytest.mark.parametrize("inside", [False, True])
def test_ranks_outside_the_communicator_are_refused(fabric, inside):
    async def wrong(comm):
        buffer, other = np.zeros(1), np.zeros(1)
        for rank in (comm.size, -2):
            message = f"rank {rank} is not in a communicator of {comm.size}"
            with pytest.raises(ValueError, match=message):
                await comm.send(buffer, rank)
            with pytest.raises(ValueError, match=message):
                await comm.recv(buffer, rank)
            with pytest.raises(ValueError, match=message):
                await comm.exchange(buffer, rank, other, comm.rank)
            with pytest.raises(ValueError, match=message):
                await comm.exchange(buffer, comm.rank, other, rank)
        with pytest.raises(ValueError, match="rank -1 is not in"):
            await comm.send(buffer, ANY)
        with pytest.raises(ValueError, match="rank -1 is not in"):
            await comm.exchange(buffer, comm.rank, other, ANY)

    async def program(comm):
        await (comm.start(wrong(comm)) if inside else wrong(comm))

    fabric.run(program)


# wildcards and order


async def collect(comm, senders, source, tag):
    """Receive a message from each of ``senders``; return source, tag and value of each."""
    seen = []
    for sender in senders:
        buffer = np.zeros(2)
        status = await comm.recv(
            buffer, sender if source == "named" else ANY, sender % 256 if tag == "named" else ANY
        )
        assert status.count == 1
        seen.append((status.source, status.tag, buffer[0]))
    return seen


@pytest.mark.parametrize(("source", "tag"), [("any", "any"), ("named", "any"), ("any", "named")])
@pytest.mark.parametrize("inside", [False, True])
def test_any_source_and_any_tag(group, inside, source, tag):
    async def talk(comm):
        if comm.rank == 0:
            return await collect(comm, range(1, comm.size), source, tag)
        await comm.send(np.array([10.0 * comm.rank]), 0, comm.rank)
        return None

    async def program(comm):
        return await (comm.start(talk(comm)) if inside else talk(comm))

    seen = group.run(program)[0]
    assert sorted(seen) == [(r, r, 10.0 * r) for r in range(1, group.ranks)]


@pytest.mark.parametrize(
    ("source", "tag"), [("any", "any"), ("named", "any"), ("any", "named"), ("named", "named")]
)
@pytest.mark.parametrize(("late_source", "late_tag"), [("any", "any"), ("named", "any"), ("named", "named")])
def test_a_wildcard_matches_no_message_of_another_program(group, source, tag, late_source, late_tag):
    """Messages of the program ``early`` arrive first and wait while ``prompt`` receives its own."""

    async def early(comm, gate):
        if comm.rank == 0:
            await gate
            return await collect(comm, [*range(1, comm.size)] * 2, late_source, late_tag)
        for turn in (1, 2):
            await comm.send(np.array([-10.0 * comm.rank - turn]), 0, comm.rank)
        return None

    async def prompt(comm):
        if comm.rank == 0:
            return await collect(comm, range(1, comm.size), source, tag)
        await comm.send(np.array([10.0 * comm.rank]), 0, comm.rank)
        return None

    async def program(comm):
        go = np.zeros(1)
        gate = comm.start(comm.recv(go, 1, 9), shared_tags=True) if comm.rank == 0 else None
        first = comm.start(early(comm, gate))
        second = comm.start(prompt(comm))
        got = await second
        if comm.rank == 1:
            await comm.send(go, 0, 9)
        return await first, got

    earlier, prompter = group.run(program)[0]
    others = range(1, group.ranks)
    assert sorted(prompter) == [(r, r, 10.0 * r) for r in others]
    assert sorted(earlier) == sorted((r, r, -10.0 * r - turn) for r in others for turn in (1, 2))
    for rank in others:  # and in the order of sending
        assert [value for source, _, value in earlier if source == rank] == [-10.0 * rank - 1, -10.0 * rank - 2]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("source", [0, ANY])
@pytest.mark.parametrize("tag", [5, ANY])
def test_messages_do_not_overtake(group, inside, source, tag):
    """Not even a short one a long one, which the library sends by another protocol."""
    lengths = [1, 100_000, 2, 0, 50_000, 3]

    async def talk(comm):
        if comm.rank == 0:
            under_way = [
                comm.start(comm.send(np.full(length, float(i)), peer, 5), shared_tags=True)
                for i, length in enumerate(lengths)
                for peer in range(1, comm.size)
            ]
            for sending in under_way:
                await sending
        else:
            buffer = np.zeros(100_000)
            for i, length in enumerate(lengths):
                assert await comm.recv(buffer, source, tag) == Status(0, 5, length)
                assert (buffer[:length] == i).all()

    async def program(comm):
        await (comm.start(talk(comm)) if inside else talk(comm))

    group.run(program)


def test_a_tag_selects_its_message(group):
    async def program(comm):
        if comm.rank == 0:
            under_way = [
                comm.start(comm.send(np.array([float(tag)]), peer, tag), shared_tags=True)
                for tag in (1, 2, 3)
                for peer in range(1, comm.size)
            ]
            for sending in under_way:
                await sending
            return [3, 2, 1]
        buffer, got = np.zeros(1), []
        for tag in (3, 2, 1):
            await comm.recv(buffer, 0, tag)
            got.append(buffer[0])
        return got

    assert group.run(program) == [[3, 2, 1]] * group.ranks


# started programs


def test_started_programs_do_not_mix_messages(fabric):
    """All programs use the same tag and are joined in a different order on each rank."""

    async def program(comm):
        under_way = [comm.start(total(comm, 10**k * (comm.rank + 1))) for k in range(5)]
        mine = await total(comm, -comm.rank)
        sums = [None] * 5
        for k in np.random.default_rng(comm.rank).permutation(5):
            sums[k] = await under_way[k]
        return mine, sums

    p = fabric.ranks
    numbers = p * (p + 1) // 2
    assert fabric.run(program) == [(-p * (p - 1) / 2, [10**k * numbers for k in range(5)])] * p


def test_programs_started_one_after_another(fabric):
    async def program(comm):
        return [await comm.start(total(comm, k + comm.rank)) for k in range(20)]

    p = fabric.ranks
    assert fabric.run(program) == [[p * k + p * (p - 1) / 2 for k in range(20)]] * p


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


def test_a_started_program_starts_another(fabric):
    async def inner(comm, value):
        return await total(comm, value)

    async def outer(comm, value):
        nested = comm.start(inner(comm, 100 * value))
        return await total(comm, value), await nested

    async def program(comm):
        under_way = [comm.start(outer(comm, k)) for k in (1, 2, 3)]
        mine = await total(comm, 4)
        return mine, [await task for task in reversed(under_way)]

    p = fabric.ranks
    assert fabric.run(program) == [(4 * p, [(k * p, 100 * k * p) for k in (3, 2, 1)])] * p


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


def test_a_program_can_be_awaited_again(fabric):
    async def program(comm):
        task = comm.start(total(comm, 1))
        return [await task, await task, task.result, task.done]

    assert fabric.run(program) == [[fabric.ranks, fabric.ranks, fabric.ranks, True]] * fabric.ranks


def test_two_programs_may_wait_for_the_same_one(fabric):
    async def wait(task):
        return await task

    async def program(comm):
        task = comm.start(total(comm, 1))
        waiting = [comm.start(wait(task)), comm.start(wait(task))]
        return [await other for other in waiting]

    assert fabric.run(program) == [[fabric.ranks] * 2] * fabric.ranks


def test_shared_tags_match_a_peer_without_started_programs(group):
    async def program(comm):
        if comm.rank == 0:
            incoming = [np.zeros(1) for _ in range(1, comm.size)]
            for buffer in incoming:
                await comm.recv(buffer, tag=6)
            return sorted(buffer[0] for buffer in incoming)
        push = comm.start(comm.send(np.array([float(comm.rank)]), 0, 6), shared_tags=True)
        await push
        return []

    assert group.run(program)[0] == list(range(1, group.ranks))


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


@pytest.mark.parametrize("after", [None, 1])
def test_a_started_program_that_fails_before_it_is_awaited_ends_the_run(fabric, after):
    async def program(comm):
        comm.start(fail(comm, after))
        for _ in range(10):
            await comm.compute("layer", lambda: None)

    with pytest.raises(Mistake, match="mine"):
        fabric.run(program)


def test_the_main_program_raises(fabric):
    with pytest.raises(Mistake, match="mine"):
        fabric.run(lambda comm: fail(comm, 1))


def test_compute_returns_what_the_work_returned(fabric):
    async def inside(comm):
        return await comm.compute("inner", lambda: comm.rank * 2)

    async def program(comm):
        task = comm.start(inside(comm))
        return await comm.compute("outer", lambda: (comm.rank, "done")), await task

    assert fabric.run(program) == [((rank, "done"), 2 * rank) for rank in range(fabric.ranks)]


def test_compute_raises_what_the_work_raised(fabric):
    def work():
        raise Mistake("in the work")

    async def program(comm):
        with pytest.raises(Mistake, match="in the work"):
            await comm.compute("work", work)

    fabric.run(program)


# communicators


def test_split_orders_by_key_and_then_by_rank(fabric):
    async def program(comm):
        backwards = await comm.split(0, -comm.rank)
        assert (backwards.rank, backwards.size) == (comm.size - 1 - comm.rank, comm.size)
        assert await shift(backwards, comm.rank) == (comm.rank + 1) % comm.size
        same = await comm.split(5, 3)
        assert (same.rank, same.size) == (comm.rank, comm.size)

    fabric.run(program)


def test_split_into_uneven_parts(fabric):
    """Ranks 0, 3, 6, ... are one group, all others another."""

    async def program(comm):
        part = await comm.split(int(comm.rank % 3 == 0))
        members = [r for r in range(comm.size) if (r % 3 == 0) == (comm.rank % 3 == 0)]
        assert (part.rank, part.size) == (members.index(comm.rank), len(members))
        assert await total(part, comm.rank) == sum(members)
        return await total(comm, part.size)

    threes = -(-fabric.ranks // 3)
    expected = threes**2 + (fabric.ranks - threes) ** 2
    assert fabric.run(program) == [expected] * fabric.ranks


def test_split_twice(fabric):
    async def program(comm):
        half = await comm.split(comm.rank % 2)
        quarter = await half.split(half.rank % 2, -half.rank)
        members = [r for r in range(comm.size) if r % 4 == comm.rank % 4][::-1]
        assert (quarter.rank, quarter.size) == (members.index(comm.rank), len(members))
        tasks = [c.start(total(c, comm.rank)) for c in (comm, half, quarter)]
        return [await task for task in reversed(tasks)]

    everybody = range(fabric.ranks)
    assert fabric.run(program) == [
        [sum(r for r in everybody if r % step == rank % step) for step in (4, 2, 1)] for rank in everybody
    ]


def test_status_names_the_rank_within_the_communicator(group):
    async def program(comm):
        backwards = await comm.split(0, -comm.rank)
        if backwards.rank == 0:
            return sorted([(await backwards.recv(np.zeros(1))).source for _ in range(1, comm.size)])
        await backwards.send(np.zeros(1), 0)
        return None

    assert group.run(program)[-1] == list(range(1, group.ranks))


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
def test_native_collectives_sum_in_place(fabric, collective, dtype):
    async def program(comm):
        buffer = np.arange(5, dtype=dtype) + comm.rank
        await comm.native(collective, buffer)
        await comm.native(collective, np.empty(0, dtype))
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


def test_native_barrier_holds_all_ranks(fabric):
    async def program(comm):
        for _ in range(3):
            await comm.native("barrier", np.empty(0))
        part = await comm.split(comm.rank % 2)
        await part.native("barrier", np.empty(0))
        buffer = np.ones(1)
        await part.native("allreduce", buffer)
        return buffer[0] == part.size

    assert all(fabric.run(program))


def test_unknown_native_collectives_are_refused(fabric):
    async def program(comm):
        with pytest.raises(ValueError, match="no native collective 'alltoall'"):
            await comm.native("alltoall", np.zeros(1))

    fabric.run(program)


# scratch


def test_scratch_is_reused_by_the_next_caller(fabric):
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

    fabric.run(program)


def test_scratch_is_returned_after_an_error(fabric):
    async def program(comm):
        like = np.zeros(1)
        with pytest.raises(Mistake), comm.scratch(3, like) as first:
            raise Mistake
        with comm.scratch(3, like) as again:
            assert again is first

    fabric.run(program)
