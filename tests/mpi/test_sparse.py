"""Sparse sums over MPI: those of one process, with its messages and bytes."""

import pytest
from contract.aggregations import SPARSE, scheme

from hpcdl.aggregation.parts.entries import Series
from hpcdl.cases.contract.scheme_contract import drawn, fault
from hpcdl.fabric.virtual.inprocess import in_process

pytestmark = pytest.mark.mpi


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


@pytest.mark.parametrize("name", SPARSE)
def test_several_at_once(name, mpi):
    """As gradients' buckets; they are joined in another order."""
    ranks, rank = mpi.comm.size, mpi.comm.rank
    sizes = [20_000, 1, 500, 17]
    given = [drawn(ranks, size, size // 4) for size in sizes]

    async def program(comm):
        calls = [
            scheme(name)(comm, one[rank], Series(size, size // 4)) for one, size in zip(given, sizes, strict=True)
        ]
        tasks = [comm.start(call) for call in calls[:-1]]
        last = await calls[-1]
        return [*reversed([await task for task in reversed(tasks)]), last]

    found = mpi.comm.library.allgather(mpi.run(program(mpi.comm)))
    for piece, size in enumerate(sizes):
        assert not fault([one[piece] for one in found], given[piece], size), f"piece {piece}"
