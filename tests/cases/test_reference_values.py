"""What a collective case compares with is what the collective computes, and a wrong result is seen."""

import numpy as np
import pytest
from contract.aggregations import called
from contract.operands import as_wanted

from hpcdl.aggregation.parts.collectives import COLLECTIVES
from hpcdl.cases.measuring.timed_collectives import Contents, alike, reals
from hpcdl.fabric.virtual.inprocess import in_process


def contents(collective, ranks, size, dtype="float32"):
    found = []

    async def program(comm):
        found.append(Contents(collective, comm, size, dtype))

    in_process(ranks).run(program)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_native_s_result_is_right(collective, ranks):
    for size in (0, ranks, 30 * ranks):
        held = contents(collective, ranks, size)
        buffers = np.array([one.before for one in held])
        in_process(ranks).run(lambda comm, rows=buffers: called(collective, "native", comm, rows[comm.rank]))
        assert all(one.right(buffer) for one, buffer in zip(held, buffers, strict=True))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_it_is_right_only_where_every_number_is(collective):
    """Of what the collective settles: held against index arithmetic of the tests' own."""
    ranks, size = 3, 12
    held = contents(collective, ranks, size)
    given = np.array([one.before for one in held])
    good = given.copy()
    in_process(ranks).run(lambda comm: called(collective, "native", comm, good[comm.rank]))
    for rank in range(ranks):
        for place in range(size):
            bad = good.copy()
            bad[rank, place] += 1
            expected = collective == "allreduce" or not as_wanted(collective, bad, given)
            assert held[rank].right(bad[rank]) is not expected


@pytest.mark.parametrize("ranks", [2, 5])
def test_one_bit_on_one_rank_is_noticed(ranks):
    def same(changed):
        async def program(comm):
            vector = reals(0, 100, "float32")
            if comm.rank == changed:
                vector.view(np.uint32)[50] ^= 1
            return await alike(comm, vector)

        return in_process(ranks).run(program)

    assert same(None) == [True] * ranks
    assert same(ranks - 1) == [False] * ranks
