"""What only the MPI interpreter does: progress under local work, resting, clocks, counting, giving up."""

import os
from time import perf_counter, process_time, sleep

import numpy as np
import pytest
from contract.operands import operands
from mpi4py import MPI

from hpcdl.aggregation.ring import ring
from hpcdl.fabric import mpi_clock
from hpcdl.fabric.mpi import Mpi, library_version

pytestmark = pytest.mark.mpi

needs_two = pytest.mark.mpi(min_size=2)


def test_a_started_ring_makes_progress_during_compute(mpi):
    """It is done before anybody awaits it."""
    rows, expected = operands(mpi.comm.size, 10_007)
    mine = rows[mpi.comm.rank]

    async def program(comm):
        task = comm.start(ring(comm, mine))
        for pieces in range(1000):
            if task.done:
                return pieces
            await comm.compute("layer", lambda: sleep(0.001))
        return None

    pieces = mpi.run(program(mpi.comm))
    assert pieces is not None
    assert (mine == expected).all()


def test_a_started_ring_makes_progress_within_one_compute(mpi):
    """One long layer is enough: the ring's 2 (p - 1) steps happen during it, not after it."""
    rows, expected = operands(mpi.comm.size, 10_007)
    mine = rows[mpi.comm.rank]

    async def program(comm):
        await comm.compute("layer", lambda: sleep(0.001))  # so that it is known to be long
        task = comm.start(ring(comm, mine))
        await comm.compute("layer", lambda: _until(lambda: task.done))
        return task.done

    assert mpi.run(program(mpi.comm))
    assert (mine == expected).all()


def _until(happened):
    """Work that waits: on a second thread for what the first one does. Gives up after a while."""
    for _ in range(20_000):
        if happened():
            return
        sleep(0.001)


def test_programs_make_progress_whoever_is_awaited(mpi):
    """A rank that awaits its last program answers for the others meanwhile."""
    comm = mpi.comm
    vectors = [np.full(1000, float(comm.rank)) for _ in range(3)]

    async def program(comm):
        tasks = [comm.start(ring(comm, vector)) for vector in vectors]
        await tasks[comm.rank % 3]
        for task in tasks:
            await task

    mpi.run(program(comm))
    for vector in vectors:
        assert (vector == comm.size * (comm.size - 1) / 2).all()


@needs_two
def test_ranks_rest_asleep_until_all_are_there(mpi):
    comm = mpi.comm
    comm.library.Barrier()
    begin, used = perf_counter(), process_time()
    if comm.rank == 0:
        sleep(0.5)
    comm.rest()
    waited, used = perf_counter() - begin, process_time() - used
    assert waited > 0.4
    assert used < waited / 2


def test_ranks_under_one_kernel_have_one_clock(mpi):
    if len(set(mpi.comm.library.allgather(MPI.Get_processor_name()))) == 1:
        assert mpi.comm.clock() == (0, 0)


def test_other_clocks_are_off_by_no_more_than_is_said(mpi, monkeypatch):
    """By messages, as if kernels differed: then the clock that ranks share shows the error."""
    monkeypatch.setattr(mpi_clock, "_keeper", lambda: str(mpi.comm.rank))
    offset, error = mpi_clock.compared(mpi.comm.library)
    assert abs(offset) <= error
    assert (error == 0) == (mpi.comm.rank == 0)


def test_the_gauge_counts(mpi):
    async def program(comm):
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        await comm.exchange(np.zeros(10), right, np.zeros(10), left)
        await comm.start(comm.exchange(np.zeros(3, np.float32), right, np.zeros(3, np.float32), left))
        await comm.compute("work", lambda: sleep(0.01))
        await comm.compute("input", lambda: sleep(0.01))

    before = mpi.gauge()
    mpi.run(program(mpi.comm))
    after = mpi.gauge()
    assert after.messages - before.messages == 2
    assert after.bytes - before.bytes == 92
    computed, input_ = after.compute_ns - before.compute_ns, after.input_ns - before.input_ns
    assert 20_000_000 <= 10_000_000 + input_ <= computed <= after.time_ns - before.time_ns


def test_every_operation_is_an_event(mpi):
    """What the trace says: program, label, times in order, peer and bytes."""

    async def program(comm):
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        await comm.compute("forward", lambda: None)
        await comm.exchange(np.zeros(10), right, np.zeros(10), left)
        await comm.start(comm.exchange(np.zeros(3), right, np.zeros(3), left))
        await comm.start(comm.add(np.zeros(2), np.zeros(2)))
        await comm.native("barrier", np.zeros(0))
        if comm.rank == 0 < right:
            await comm.send(np.zeros(4), right)
        elif comm.rank == 1:
            status = await comm.recv(np.zeros(6))
            assert status.count == 4

    mpi.events = events = []
    try:
        mpi.run(program(mpi.comm))
    finally:
        mpi.events = None
    left, right = (mpi.comm.rank - 1) % mpi.comm.size, (mpi.comm.rank + 1) % mpi.comm.size
    expected = [
        (0, "forward", -1, 0),
        (0, "recv", left, 80),
        (0, "send", right, 80),
        (1, "recv", left, 24),
        (1, "send", right, 24),
        (2, "add", -1, 16),
        (0, "native barrier", -1, 0),
    ]
    if mpi.comm.size > 1 and mpi.comm.rank < 2:
        expected.append((0, "recv", 0, 32) if mpi.comm.rank else (0, "send", 1, 32))
    assert [(task, label, peer, size) for task, label, _, _, peer, size in events] == expected
    begins, ends = ([event[at] for event in events] for at in (2, 3))
    assert begins == sorted(begins)
    assert ends == sorted(ends)
    assert all(begin <= end for begin, end in zip(begins, ends, strict=True))


class Mistake(Exception):
    pass


def test_a_main_program_that_fails_ends_the_run_though_others_are_in_flight():
    """What it started may wait for ever; a job whose rank has failed must be told, so that it can be ended."""
    mpi = Mpi()
    got = np.zeros(1)

    async def fail(comm):
        comm.start(comm.recv(got, (comm.rank - 1) % comm.size, 5))
        raise Mistake

    async def deliver(comm):
        await comm.start(comm.send(np.ones(1), (comm.rank + 1) % comm.size, 5))

    with pytest.raises(Mistake):
        mpi.run(fail(mpi.comm))
    assert not mpi.alone
    mpi.comm.library.Barrier()
    mpi.run(deliver(mpi.comm))
    assert mpi.alone
    assert got[0] == 1


def test_one_job_runs_many_programs_on_any_of_its_communicators(mpi):
    half = mpi.run(mpi.comm.split(mpi.comm.rank % 2))
    for comm in (mpi.comm, half, mpi.comm):
        mine = np.ones(5)
        mpi.run(ring(comm, mine))
        assert (mine == comm.size).all()


def test_the_library_has_a_name():
    version = library_version()
    assert version["library"]
    assert version["version"][0].isdigit()
    assert version["text"]


@pytest.mark.skipif(MPI.COMM_WORLD.size <= len(os.sched_getaffinity(0)), reason="needs more ranks than cores")
def test_ranks_that_are_alone_awake_have_cores_for_themselves():
    """As many of them as there are cores, on one machine; then all are awake again."""
    mpi = Mpi()
    assert mpi.patience.crowded
    assert not mpi.may_block
    cores = len(os.sched_getaffinity(0))
    part = mpi.run(mpi.comm.split(mpi.comm.rank < cores))
    if mpi.comm.rank < cores:
        mpi.awake(part)
        assert not mpi.patience.crowded
        assert mpi.may_block
    mpi.comm.rest()
    mpi.awake(mpi.comm)
    assert mpi.patience.crowded
    assert not mpi.may_block


@needs_two
@pytest.mark.parametrize("known", [True, False])
def test_messages_move_during_long_work_whatever_else_is_worked_on(known, mpi):
    """Long work that begins while a started program works, too: that one must not be waited for, nor stand still.

    That holds for work that was never done before, of which nobody knows how long it takes.
    """
    during = []
    mpi.lasted.clear()

    async def program(comm):
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        exchanges = 0

        async def met(tag):
            await comm.exchange(np.zeros(3), right, np.zeros(3), left, tag)

        async def side():
            await met(1)
            await comm.compute("side", lambda: sleep(0.005))

        async def talk():
            nonlocal exchanges
            for _ in range(400):
                await met(2)
                exchanges += 1

        def long():
            before = exchanges
            sleep(0.3)
            during.append(exchanges - before)

        for label in ("side", "long") if known else ():
            await comm.compute(label, lambda: sleep(0.001))
        tasks = [comm.start(side()), comm.start(talk())]
        await met(3)
        await comm.compute("long", long)
        for task in tasks:
            await task

    mpi.run(program(mpi.comm))
    assert during[0] >= 10
