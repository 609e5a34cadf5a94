"""Every aggregation over MPI, also of compressed gradients: results, messages and bytes of one process."""

import weakref

import numpy as np
import pytest
from contract.aggregations import ON_HOSTS, OTHERS, SCHEMES, SPARSE, called, called_out_of_place, scheme
from contract.blocks import EVERY, exchanged, matrices
from contract.compression import Side, planned
from contract.operands import as_wanted, awkward_lengths, operands
from contract.sparse import drawn, fault

from hpcdl.aggregation.parts.entries import Series
from hpcdl.fabric.mpi import natives
from hpcdl.fabric.vectors import BufferPool, OutOfPlace
from hpcdl.fabric.virtual.comm import SUMS

pytestmark = pytest.mark.mpi


def fitting(collective, ranks, length):
    return length // ranks * ranks if collective == "all_to_all" else length


@pytest.mark.parametrize(("collective", "name"), [*(("allreduce", name) for name in SCHEMES), *OTHERS])
def test_results_messages_and_bytes_are_those_of_one_process(collective, name, mpi, as_in_process):
    """Of several at once, whose lengths need different numbers of steps, joined in any order; then of half the ranks."""
    ranks, rank = mpi.comm.size, mpi.comm.rank
    lengths = [fitting(collective, ranks, length) for length in (*reversed(awkward_lengths(ranks)), 5000, 17)]
    half = range(rank % 2, ranks, 2)[::-1]
    given = [operands(ranks, length)[0] for length in (*lengths, fitting(collective, 12, 103))]

    async def program(comm):
        first, *others, last = [rows[comm.rank].copy() for rows in given]
        tasks = [comm.start(called(collective, name, comm, vector)) for vector in others]
        await called(collective, name, comm, first)
        for k in np.random.default_rng(comm.rank).permutation(len(tasks)):
            await tasks[k]
        part = await comm.split(comm.rank % 2, -comm.rank)
        await called(collective, name, part, last)
        return first, *others, last

    (*vectors, last), _ = as_in_process(program)
    for vector, rows in zip(vectors, given[:-1], strict=True):
        assert as_wanted(collective, vector, rows, rank), f"{len(vector)} elements"
    assert as_wanted(collective, last, given[-1][half], half.index(rank))


@pytest.mark.parametrize(("collective", "name"), ON_HOSTS)
def test_an_out_of_place_operand_does_not_change(collective, name, mpi):
    """Called by the main program and by started programs."""
    comm = mpi.comm
    lengths = [fitting(collective, comm.size, length) for length in awkward_lengths(comm.size)]
    given = [operands(comm.size, length)[0] for length in lengths]
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


@pytest.mark.parametrize(("name", "settings"), EVERY)
def test_blocks_arrive_with_the_messages_and_bytes_of_one_process(name, settings, mpi, as_in_process):
    """Called by the main program, and by started programs."""
    every = matrices(mpi.comm.size)

    async def program(comm):
        tasks = [comm.start(exchanged(comm, name, counts, settings)) for counts in every]
        return [await exchanged(comm, name, counts, settings) for counts in every] + [await task for task in tasks]

    assert all(as_in_process(program, native=name == "native")[0])


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
    calls = natives.Natives(BufferPool(lambda *_: pytest.fail("scratch")), *spies, set())
    operand, result = np.ones((2, 6 * mpi.comm.size))
    for wait in calls.run(collective, operand, result, [6] * mpi.comm.size, blocking=blocking):
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
def test_sparse_sums_are_those_of_one_process(name, size, count, mpi, as_in_process):
    given = [drawn(mpi.comm.size, size, count, step) for step in range(3)]

    async def program(comm):
        series = Series(size, count)
        return [await scheme(name)(comm, entries[comm.rank], series) for entries in given]

    found, expected = as_in_process(program)
    for mine, wanted, entries in zip(found, expected, given, strict=True):
        assert not fault(mpi.comm.library.allgather(mine), entries, size)
        assert mine.total.values.tobytes() == wanted.total.values.tobytes()


EXCHANGES = [("fp16", "ring"), ("fp16", "native"), ("bf16", "halving_doubling"), ("bf16", "two_shot")]
EXCHANGES += [("top_k", scheme) for scheme in ("allgather", "bruck", "hierarchical", "ok_topk")]
EXCHANGES += [("threshold", "circulant"), ("one_bit", "sharded_parameter_server"), ("sign", "parameter_server")]


@pytest.mark.parametrize(("compressor", "scheme"), EXCHANGES)
def test_sums_and_bytes_are_those_of_one_process(compressor, scheme, mpi, as_in_process):
    """Three steps, in buckets that are under way at once."""
    size = 5003
    rows = np.random.default_rng(1).standard_normal((3, mpi.comm.size, size)).astype(np.float32)
    bounds = [(0, 2001), (2001, 2003), (2003, size)]
    chosen = planned(compressor, scheme)

    async def program(comm):
        side, sums = Side(chosen, size), rows[:, comm.rank].copy()
        for step in sums:
            tasks = [comm.start(side.reduce(comm, step, *one)) for one in bounds]
            for task in tasks:
                await task
        return sums

    found, expected = as_in_process(program, native=scheme == "native")
    if scheme == "native":  # the library chooses the order of additions
        np.testing.assert_allclose(found, expected, atol=2e-2)
    else:
        assert (found == expected).all()
    assert len(set(mpi.comm.library.allgather(found.tobytes()))) == 1
