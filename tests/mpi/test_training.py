"""Synchronous training and pipelines over MPI equal training on one rank with the whole batch."""

import numpy as np
import pytest
from contract.training import GLOBAL_BATCH, SEED, STEPS, TOLERANCE, digits, session

from hpcdl import registry
from hpcdl.cases.keys.stage_balance import partition
from hpcdl.nn.backend import backend
from hpcdl.nn.replica import Replica
from hpcdl.trace.recorder import Recorder, Step
from hpcdl.training.layerwise import layerwise
from hpcdl.training.parts.split.mesh import placed
from hpcdl.training.parts.split.schedules import SCHEDULES
from hpcdl.training.pipeline import pipeline
from hpcdl.training.synchronous import synchronous
from hpcdl.training.zero import zero

pytestmark = pytest.mark.mpi


BUCKETS = {"bucket_bytes": 20_000}

TRAININGS = [
    (synchronous, BUCKETS, "ring", "float64"),
    (synchronous, {}, "tree", "float32"),
    (synchronous, BUCKETS, "native", "float32"),
    (layerwise, {"updates": "ranks"}, "ring", "float64"),
    (layerwise, {"updates": "ranks", **BUCKETS}, "native_reduce_scatter_allgather", "float32"),
    (layerwise, {"updates": "server", **BUCKETS}, "tree", "float64"),
    (zero, {"stage": 3}, "ring", "float64"),
    (zero, {"stage": 2, **BUCKETS}, "native", "float64"),
    (zero, {"stage": 3}, "native", "float64"),
]


@pytest.mark.parametrize(("strategy", "settings", "aggregation", "dtype"), TRAININGS)
def test_equals_one_rank_with_the_whole_batch(strategy, settings, aggregation, dtype, mpi, difference):
    recorder, library = Recorder(events=False), mpi.comm.library
    mine = session(aggregation, dtype, recorder, allocate=mpi.comm.memory.allocate)
    mpi.run(strategy(mpi.comm, mine, **settings))
    parameters = mine.replica.parameters
    assert difference(parameters, dtype) < TOLERANCE[dtype]
    assert strategy != zero or mine.memory_bytes < 3 * parameters.nbytes or mpi.comm.size == 1
    assert len(set(library.allgather(parameters.tobytes()))) == 1
    assert len(set(library.allgather(str(recorder.evaluations[0])))) == 1
    assert library.allreduce(sum(row.images for row in recorder.steps)) == STEPS * GLOBAL_BATCH


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_training_equals_that_of_the_undivided_network(schedule, mpi, difference):
    """All ranks are one pipeline; with an even number, half as many stages too."""
    ranks = mpi.comm.size
    layers = registry.find("models", "lenet5")(digits().shape, digits().classes)
    for stages in sorted({ranks, ranks if ranks % 2 else ranks // 2}):
        if stages > len(layers):
            continue
        cuts = partition([1.0] * len(layers), stages, [1.0] * len(layers))
        part, recorder = cuts[mpi.comm.rank % stages], Recorder(events=False)
        replica = Replica(layers, digits().shape, backend=backend("numpy"), dtype="float64", seed=SEED, part=part)
        mine = session("ring", "float64", recorder, replica=replica)
        mine.place = mpi.run(placed(mpi.comm, stages))
        mpi.run(pipeline(mpi.comm, mine, microbatches=5, schedule=schedule))
        found = mpi.comm.library.allgather(replica.parameters)
        for first in range(0, ranks, stages):
            whole = np.concatenate(found[first : first + stages])
            assert difference(whole, "float64") < TOLERANCE["float64"]
        images = mpi.comm.library.allreduce(sum(Step(*row).images for row in recorder.steps))
        assert images == len(recorder.steps) * GLOBAL_BATCH
        assert len(set(mpi.comm.library.allgather(recorder.evaluations[-1][4]))) == 1
