"""Every aggregation over MPI: exact sums, with the messages and bytes of one process."""

import weakref

import numpy as np
import pytest
from contract.aggregations import ON_HOSTS, OTHERS, SCHEMES, SPARSE, called, called_out_of_place, scheme
from contract.operands import as_wanted, awkward_lengths, operands
from contract.sparse import drawn, fault

from hpcdl.aggregation.parts.entries import Series
from hpcdl.fabric.mpi import natives
from hpcdl.fabric.mpi import natives as mpi_native
from hpcdl.fabric.vectors import BufferPool, OutOfPlace
from hpcdl.fabric.virtual.collectives import SUMS
from hpcdl.fabric.virtual.inprocess import in_process

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("name", SCHEMES)
def test_five_at_once(name, mpi):
    """Lengths differ, so that some need many more steps; they are joined in any order."""

    async def program(comm, pieces, last):
        tasks = [comm.start(scheme(name)(comm, piece)) for piece in pieces]
        await scheme(name)(comm, last)
        for k in np.random.default_rng(comm.rank).permutation(len(tasks)):
            await tasks[k]

    ranks = mpi.comm.size
    lengths = [100_003, 0, ranks + 1, 1, 5000, 17]
    operations = [operands(ranks, length) for length in lengths]
    *pieces, last = [rows[mpi.comm.rank].copy() for rows, _ in operations]
    mpi.run(program(mpi.comm, pieces, last))
    for mine, (_, expected) in zip([*pieces, last], operations, strict=True):
        assert (mine == expected).all(), f"{len(mine)} elements"


@pytest.mark.parametrize("name", SCHEMES)
def test_sums_over_a_part_of_the_ranks(name, mpi):
    ranks, rank = mpi.comm.size, mpi.comm.rank
    rows, _ = operands(ranks, 103)
    expected = rows[rank % 2 :: 2].sum(axis=0)

    async def program(comm):
        part = await comm.split(comm.rank % 2, -comm.rank)
        await scheme(name)(part, rows[comm.rank])

    mpi.run(program(mpi.comm))
    assert (rows[rank] == expected).all()


@pytest.mark.parametrize("name", [*SCHEMES, "none"])
def test_messages_and_bytes_are_those_of_one_process(name, mpi):
    ranks, rank = mpi.comm.size, mpi.comm.rank
    rows, _ = operands(ranks, 1009)
    world = in_process(ranks)
    world.run(lambda comm: scheme(name)(comm, rows[comm.rank].copy()))
    before = mpi.counters()
    mpi.run(scheme(name)(mpi.comm, rows[rank].copy()))
    after = mpi.counters()
    assert after.messages - before.messages == world.messages[rank]
    assert after.bytes - before.bytes == world.bytes[rank]


@pytest.mark.parametrize(("collective", "name"), OTHERS)
def test_other_collectives_give_the_results_of_mpi(collective, name, mpi):
    comm = mpi.comm
    fitting = comm.size if collective == "all_to_all" else 1
    for length in awkward_lengths(comm.size):
        rows, _ = operands(comm.size, length // fitting * fitting)
        mine = rows[comm.rank].copy()
        mpi.run(called(collective, name, comm, mine))
        assert as_wanted(collective, mine, rows, comm.rank), f"{length} elements"


@pytest.mark.parametrize(("collective", "name"), ON_HOSTS)
def test_an_out_of_place_operand_does_not_change(collective, name, mpi):
    """Called by the main program and by started programs."""
    comm = mpi.comm
    fitting = comm.size if collective == "all_to_all" else 1
    given = [operands(comm.size, length // fitting * fitting)[0] for length in awkward_lengths(comm.size)]
    mine = [rows[comm.rank].copy() for rows in given]

    async def program(results, *, started):
        calls = [called_out_of_place(collective, name, comm, *both) for both in zip(mine, results, strict=True)]
        for call in [comm.start(call) for call in calls] if started else calls:
            await call

    for started in (False, True):
        results = [np.full_like(vector, np.nan) for vector in mine]
        mpi.run(program(results, started=started))
        for rows, vector, result in zip(given, mine, results, strict=True):
            assert as_wanted(collective, result, rows, comm.rank), f"{len(vector)} elements"
            assert (vector == rows[comm.rank]).all()


class Recording:
    """A communicator that records the vectors of its calls."""

    def __init__(self, communicator):
        self._communicator = communicator
        self.vectors = []

    def __getattr__(self, name):
        found = getattr(self._communicator, name)
        if not name[0].isupper():
            return found

        def call(*arguments):
            self.vectors += [one[0] if isinstance(one, list) else one for one in arguments]
            return found(*arguments)

        return call


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("collective", [*SUMS, "reduce", "reduce_scatter", "allgather", "all_to_all"])
def test_mpi_gets_operand_and_result_without_copies(collective, blocking, mpi):
    """The library reads from the operand's memory and writes to the result's."""
    main = mpi.comm.library
    spies = [Recording(main), Recording(main.Dup()), Recording(main.Dup())]
    natives = mpi_native.Natives(BufferPool(lambda *_: pytest.fail("scratch")), *spies, set())
    operand, result = np.ones((2, 6 * mpi.comm.size))
    waits = natives.run(collective, operand, result, [6] * mpi.comm.size, blocking=blocking)
    for wait in waits:
        while not wait():
            pass
    read, written = [
        [one for spy in spies for one in spy.vectors if isinstance(one, np.ndarray) and np.shares_memory(one, of)]
        for of in (operand, result)
    ]
    assert len(read) == 1
    assert written or (collective == "reduce" and mpi.comm.rank)


def test_persistent_requests_are_kept_and_freed(mpi, monkeypatch):
    """Some vectors are used again, more are used than the cache holds, and active requests are freed."""
    monkeypatch.setattr(natives, "_MAX_BYTES", 1 << 16)
    monkeypatch.setattr(natives, "_MAX_REQUESTS", 6)
    buffers = [np.zeros(1 << 11) for _ in range(20)]

    async def program(comm):
        for _ in range(2):
            for value, buffer in enumerate(buffers):
                buffer[:] = value
                await comm.native("persistent allreduce", buffer[: 1 << 10])
                await comm.native("persistent allreduce", buffer[: 1 << 10])
                assert buffer[0] == buffer[(1 << 10) - 1] == value * comm.size**2
                assert buffer[-1] == value
        for value, buffer in enumerate(buffers):
            buffer[:] = value
        under_way = [comm.start(comm.native("persistent allreduce", buffer)) for buffer in buffers]
        for value, task in enumerate(under_way):
            await task
            assert (buffers[value] == value * comm.size).all()

    mpi.run(program(mpi.comm))
    assert not mpi.at_end


def test_a_persistent_request_keeps_its_vectors_until_the_program_ends(mpi):
    vectors = []

    async def program(comm):
        operand, result = np.ones(1000), np.zeros(1000)
        vectors.extend([weakref.ref(operand), weakref.ref(result)])
        await comm.native("persistent allreduce", OutOfPlace(operand, result))
        del operand, result
        return [vector() is not None for vector in vectors]

    assert mpi.run(program(mpi.comm)) == [True, True]
    assert [vector() for vector in vectors] == [None, None]


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize(("size", "count"), [(0, 0), (1, 1), (60, 60), (100_003, 1000)])
def test_results_messages_and_bytes_are_those_of_one_process(name, size, count, mpi):
    ranks, rank = mpi.comm.size, mpi.comm.rank
    series, mine = [Series(size, count) for _ in range(ranks)], Series(size, count)
    for step in range(3):
        given = drawn(ranks, size, count, step)
        world = in_process(ranks)
        wanted = world.run(lambda comm, given=given: scheme(name)(comm, given[comm.rank], series[comm.rank]))
        before = mpi.counters()
        found = mpi.run(scheme(name)(mpi.comm, given[rank], mine))
        after = mpi.counters()
        assert not fault(mpi.comm.library.allgather(found), given, size)
        assert found.total.values.tobytes() == wanted[rank].total.values.tobytes()
        assert after.messages - before.messages == world.messages[rank]
        assert after.bytes - before.bytes == world.bytes[rank]
