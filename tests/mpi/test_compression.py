"""Exchanges of compressed gradients over MPI: the sums and bytes of one process."""

import numpy as np
import pytest
from contract.compression import Side, planned

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
