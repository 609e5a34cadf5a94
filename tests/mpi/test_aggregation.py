"""Every aggregation sums over MPI as it does in one process, with as many messages and bytes."""

import numpy as np
import pytest
from contract.aggregations import SCHEMES, scheme
from contract.operands import awkward_lengths, operands

from hpcdl.fabric.inprocess import in_process

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("name", SCHEMES)
def test_sums_whole_numbers_exactly(name, mpi):
    comm = mpi.comm
    for length in awkward_lengths(comm.size):
        rows, expected = operands(comm.size, length)
        mine = rows[comm.rank].copy()
        mpi.run(scheme(name)(comm, mine))
        assert (mine == expected).all(), f"{length} elements"


@pytest.mark.parametrize("name", SCHEMES)
def test_five_at_once(name, mpi):
    """Of different lengths, so that some need many more steps than others, and joined in any order."""

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
def test_all_ranks_get_the_same_bits(name, mpi):
    comm = mpi.comm
    mine = np.random.default_rng(comm.rank).standard_normal(10_007).astype(np.float32)
    mpi.run(scheme(name)(comm, mine))
    assert len(set(comm.library.allgather(mine.tobytes()))) == 1


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
    before = mpi.gauge()
    mpi.run(scheme(name)(mpi.comm, rows[rank].copy()))
    after = mpi.gauge()
    assert after.messages - before.messages == world.messages[rank]
    assert after.bytes - before.bytes == world.bytes[rank]
