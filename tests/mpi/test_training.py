"""Synchronous training over MPI equals training on one rank with the whole batch."""

import pytest
from contract.training import GLOBAL_BATCH, STEPS, TOLERANCE, session

from hpcdl.trace.recorder import Recorder
from hpcdl.training.layerwise import layerwise
from hpcdl.training.synchronous import synchronous

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    ("aggregation", "dtype", "bucket_bytes"),
    [
        ("ring", "float64", 20_000),
        ("tree", "float32", None),
        ("native", "float32", 20_000),
    ],
)
def test_equals_one_rank_with_the_whole_batch(aggregation, dtype, bucket_bytes, mpi, difference):
    recorder = Recorder(events=False)
    mine = session(aggregation, dtype, recorder)
    mpi.run(synchronous(mpi.comm, mine, bucket_bytes=bucket_bytes))
    assert difference(mine.replica.parameters, dtype) < TOLERANCE[dtype]
    _check(mpi, mine, recorder)


@pytest.mark.parametrize(
    ("aggregation", "dtype", "bucket_bytes"),
    [
        ("ring", "float64", None),
        ("native_reduce_scatter_allgather", "float32", 20_000),
    ],
)
def test_layerwise_equals_one_rank_with_the_whole_batch(aggregation, dtype, bucket_bytes, mpi, difference):
    recorder = Recorder(events=False)
    mine = session(aggregation, dtype, recorder)
    mpi.run(layerwise(mpi.comm, mine, bucket_bytes=bucket_bytes))
    assert difference(mine.replica.parameters, dtype) < TOLERANCE[dtype]
    _check(mpi, mine, recorder)


def _check(mpi, mine, recorder):
    parameters = mine.replica.parameters
    library = mpi.comm.library
    assert len(set(library.allgather(parameters.tobytes()))) == 1
    assert len(set(library.allgather(str(recorder.evaluations[0])))) == 1
    assert library.allreduce(sum(row.images for row in recorder.steps)) == STEPS * GLOBAL_BATCH
