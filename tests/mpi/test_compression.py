"""Exchanges of compressed gradients over MPI: the sums and bytes of one process."""

import numpy as np
import pytest
from contract.compression import Side, planned

from hpcdl.fabric.virtual.inprocess import in_process

pytestmark = pytest.mark.mpi

EXCHANGES = [
    ("fp16", "ring"),
    ("fp16", "native"),
    ("bf16", "halving_doubling"),
    ("bf16", "two_shot"),
    ("top_k", "allgather"),
    ("top_k", "bruck"),
    ("threshold", "circulant"),
    ("top_k", "hierarchical"),
    ("one_bit", "sharded_parameter_server"),
    ("sign", "parameter_server"),
    ("top_k", "ok_topk"),
]


@pytest.mark.parametrize(("compressor", "scheme"), EXCHANGES)
def test_sums_and_bytes_are_those_of_one_process(compressor, scheme, mpi):
    """Three steps, in buckets that are under way at once."""
    ranks, rank, size = mpi.comm.size, mpi.comm.rank, 5003
    rows = np.random.default_rng(1).standard_normal((3, ranks, size)).astype(np.float32)
    bounds = [(0, 2001), (2001, 2003), (2003, size)]
    chosen = planned(compressor, scheme)

    async def program(comm, gradients):
        side = Side(chosen, size)
        for step in gradients:
            tasks = [comm.start(side.reduce(comm, step, *one)) for one in bounds]
            for task in tasks:
                await task

    alone = rows.copy()
    world = in_process(ranks)
    world.run(lambda comm: program(comm, alone[:, comm.rank]))
    before = mpi.counters()
    mpi.run(program(mpi.comm, rows[:, rank]))
    after = mpi.counters()
    if scheme == "native":  # the library chooses the order of additions
        np.testing.assert_allclose(rows[:, rank], alone[:, rank], atol=2e-2)
    else:
        assert (rows[:, rank] == alone[:, rank]).all()
        assert after.bytes - before.bytes == world.bytes[rank]
    assert len(set(mpi.comm.library.allgather(rows[:, rank].tobytes()))) == 1
