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


def run(fabric, work, inside):
    """Run ``work(comm)`` on each rank, ``inside`` a started program if True; return the results."""

    async def program(comm):
        return await (comm.start(work(comm)) if inside else work(comm))

    return fabric.run(program)


# one message


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

    run(group, talk, inside)


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
def test_tags_are_from_0_to_255(fabric, inside):
    async def talk(comm):
        arrived = [await shift(comm, comm.rank, tag) for tag in (0, 1, 255)]
        buffer = np.zeros(1)
        for tag in (-1, 256):
            with pytest.raises(ValueError, match=f"tag {tag} is not in 0..255"):
                await comm.send(buffer, comm.rank, tag)
            with pytest.raises(ValueError, match=f"tag {tag} is not in 0..255"):
                await comm.exchange(buffer, comm.rank, np.zeros(1), comm.rank, tag)
        return arrived

    assert run(fabric, talk, inside) == [[(rank - 1) % fabric.ranks] * 3 for rank in range(fabric.ranks)]


@pytest.mark.parametrize("inside", [False, True])
def test_ranks_outside_the_communicator_are_refused(fabric, inside):
    async def wrong(comm):
        buffer, other = np.zeros(1), np.zeros(1)
        for rank in (comm.size, -2):
            message = f"rank {rank} is not in a communicator of {comm.size}"
            sends = [comm.send(buffer, rank), comm.exchange(buffer, rank, other, comm.rank)]
            receives = [comm.recv(buffer, rank), comm.exchange(buffer, comm.rank, other, rank)]
            for operation in sends + receives:
                with pytest.raises(ValueError, match=message):
                    await operation
        for operation in (comm.send(buffer, ANY), comm.exchange(buffer, comm.rank, other, ANY)):
            with pytest.raises(ValueError, match="rank -1 is not in"):
                await operation

    run(fabric, wrong, inside)


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

    run(group, talk, inside)


def test_a_receive_takes_the_first_message_that_fits(group):
    """First of messages that wait; then messages meet receives that wait."""

    async def program(comm):
        ready = np.zeros(1)
        if comm.rank == 1:
            sends = [comm.start(comm.send(np.zeros(1), 0, tag), shared_tags=True) for tag in (1, 2, 3, 4)]
            await comm.send(ready, 0, 9)
            for sending in sends:
                await sending
            await comm.recv(ready, 0, 9)
            for tag in (5, 6):
                await comm.send(np.zeros(1), 0, tag)
        if comm.rank == 0:
            await comm.recv(ready, 1, 9)
            places = ((1, 4), (ANY, 3), (1, ANY), (ANY, ANY))
            tags = [(await comm.recv(np.zeros(1), *place)).tag for place in places]
            receives = [comm.start(comm.recv(np.zeros(1), ANY, tag), shared_tags=True) for tag in (6, 5)]
            await comm.send(ready, 1, 9)
            return tags + [(await receive).tag for receive in receives]
        return None

    assert group.run(program)[0] == [4, 3, 1, 2, 6, 5]
