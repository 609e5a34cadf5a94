"""Strategies over MPI: as on one rank or in one process, with real messages and timing."""

from functools import cache, partial

import numpy as np
import pytest
from contract import quadratic, quartic, training
from contract.asynchronous import chosen
from contract.divided import CASES, CONVOLUTIONAL, LOCAL, SHAPE, by_one_rank, furthest, train_divided
from contract.training import GLOBAL_BATCH, SEED, STEPS, TOLERANCE, digits, session

from hpcdl import registry
from hpcdl.cases.keys.step_spec import partition
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.nn.backend import backend
from hpcdl.nn.layers import Dropout
from hpcdl.nn.replica import Replica
from hpcdl.trace.recorder import Recorder
from hpcdl.training.ad_psgd import ad_psgd
from hpcdl.training.elastic_averaging import elastic_averaging, synchronous_elastic_averaging
from hpcdl.training.gossip import d_psgd, stochastic_gradient_push
from hpcdl.training.layerwise import layerwise
from hpcdl.training.local_sgd import diloco, parameter_averaging
from hpcdl.training.parameter_servers import ssp
from hpcdl.training.parts.mesh import Mesh, placed
from hpcdl.training.parts.sections import SCHEDULES
from hpcdl.training.pipeline import pipeline
from hpcdl.training.synchronous import synchronous
from hpcdl.training.update_broadcast import update_broadcast
from hpcdl.training.zero import zero

pytestmark = pytest.mark.mpi

needs_two = pytest.mark.mpi(min_size=2)

BUCKETS = {"bucket_bytes": 20_000}
BSP = {"collect": "all", "bound": 0}

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
    (ssp, BSP, "none", "float64"),
    (ssp, {**BSP, "servers": 2, "dedicated": True}, "none", "float64"),
]


@pytest.mark.parametrize(("strategy", "settings", "aggregation", "dtype"), TRAININGS)
def test_equals_one_rank_with_the_whole_batch(strategy, settings, aggregation, dtype, mpi, difference):
    if mpi.comm.size <= settings.get("servers", 0):
        pytest.skip("too few ranks")
    recorder, library = Recorder(events=False), mpi.comm.library
    mine = session(aggregation, dtype, recorder, allocate=mpi.comm.memory.allocate)
    mpi.run(strategy(mpi.comm, mine, **settings))
    parameters = mine.replica.parameters
    assert difference(parameters, dtype) < TOLERANCE[dtype]
    assert strategy != zero or mine.memory_bytes < 3 * parameters.nbytes or mpi.comm.size == 1
    assert len(set(library.allgather(parameters.tobytes()))) == 1
    assert len(set(library.allgather(str(recorder.evaluations[0][3:5])))) == 1
    assert library.allreduce(sum(row.images for row in recorder.steps)) == STEPS * GLOBAL_BATCH
    assert not library.Iprobe()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline_equals_the_undivided_network(schedule, mpi, difference):
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
        images = mpi.comm.library.allreduce(sum(row.images for row in recorder.steps))
        assert images == len(recorder.steps) * GLOBAL_BATCH
        assert len(set(mpi.comm.library.allgather(recorder.evaluations[-1][4]))) == 1


WITHOUT_DROPOUT = [layer for layer in CONVOLUTIONAL if not isinstance(layer, Dropout)]
DIVIDED = [(layers, {"split": split, "linear": linear}, synchronous) for layers, split, linear in CASES]
HYBRIDS = [{"split": "hybrid", "exchange": exchange} for exchange in ("turns", "slices")]
DIVIDED += [(WITHOUT_DROPOUT, hybrid, synchronous) for hybrid in HYBRIDS]
IN_PAIRS = [
    (WITHOUT_DROPOUT, {"split": "hybrid"}, layerwise),  # sums of gradients are under way beside activations
    (LOCAL, {"split": "model"}, partial(ssp, **BSP)),
]


def pairs_of(size, **settings):
    """Return a mesh of pairs of ranks, or of one group of all ranks if their number is odd."""
    return Mesh(model=2 if size % 2 == 0 else size, **settings)


@needs_two
@pytest.mark.parametrize(("layers", "settings", "strategy"), [*DIVIDED, *IN_PAIRS])
def test_model_groups_equal_one_rank(layers, settings, strategy, mpi):
    """One group of all ranks, or several."""
    size = mpi.comm.size
    if strategy is synchronous and size > 7:
        pytest.skip("layers have 7 filters")
    mesh = Mesh(model=size, **settings) if strategy is synchronous else pairs_of(size, **settings)
    lengths = {"steps": 5, "global_batch": 24 if strategy is synchronous else 4 * size}
    mine, division = mpi.run(train_divided(mpi.comm, layers, SHAPE, mesh, strategy=strategy, **lengths))
    assert furthest(mine, division, by_one_rank(layers, SHAPE, **lengths)) < 1e-10


@cache
def alone(size):
    """Return the parameters of one rank, which another test compares with a plain loop."""
    return in_process(1).run(lambda comm: quartic.descend(comm, quartic.session(size=size, steps=5)))[0]


@pytest.mark.parametrize(("servers", "backup", "size"), [(0, True, 10_007), (1, True, 7), (3, False, 10_007)])
def test_sandblaster_on_any_number_of_ranks_equals_one_rank(servers, backup, size, mpi):
    if servers and mpi.comm.size < servers + 2:
        pytest.skip("needs more ranks")
    recorder = Recorder(events=False)
    mine = quartic.session(recorder, size=size, steps=5)
    found = mpi.run(quartic.descend(mpi.comm, mine, servers=servers, backup=backup))
    library = mpi.comm.library
    assert len(set(library.allgather(found.tobytes()))) == 1
    if mpi.comm.rank == 0:  # all ranks have equal parameters
        np.testing.assert_allclose(found, alone(size), rtol=0, atol=quartic.TOLERANCE)
    mpi.comm.sleeping_barrier()
    assert library.allreduce(sum(row.images for row in recorder.steps)) == 5 * quadratic.IMAGES


@pytest.mark.parametrize(
    ("numbers", "dedicated"),
    [
        ({"name": "downpour", "n_fetch": 5, "n_push": 5, "overlap": True, "warm_start": 3}, False),
        ({"name": "ssp", "bound": 1, "push": "updates"}, True),
        ({"name": "m_synchronous", "collect": 1}, False),
    ],
)
def test_all_mini_batches_are_trained_on(numbers, dedicated, mpi):
    ranks, library = mpi.comm.size, mpi.comm.library
    if dedicated and ranks == 1:
        pytest.skip("too few ranks")
    recorder = Recorder(events=False)
    keys = {"size": 20_000, "steps": STEPS, "learning_rate": lambda _step: 0.001}
    mine = quadratic.session(recorder=recorder, **keys)
    mpi.run(chosen(ranks, {"dedicated": dedicated, **numbers})(mpi.comm, mine))
    assert np.isfinite(mine.replica.parameters).all()
    assert len(set(library.allgather(mine.replica.parameters.tobytes()))) == 1
    assert not library.Iprobe()
    updates = library.allreduce(len(recorder.updates))
    if numbers.get("name") == "m_synchronous":  # stale gradients are discarded, and computed again
        assert {row.staleness for row in recorder.updates} <= {0}
        assert updates == STEPS * (ranks - dedicated)
    else:
        assert library.allreduce(len(recorder.steps)) == STEPS * (ranks - dedicated)
    assert len(set(library.allgather(tuple(recorder.evaluations[-1][:2])))) == 1


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        (parameter_averaging, {"period": 4}),
        (diloco, {"period": 4, "fragments": 2, "delay": 1}),
        (elastic_averaging, {"moving_rate": 0.2}),
        (elastic_averaging, {"moving_rate": 0.2, "dedicated": True}),
        (synchronous_elastic_averaging, {"period": 2}),
        (d_psgd, {}),
        (stochastic_gradient_push, {}),
        (ad_psgd, {}),
        (update_broadcast, {}),
    ],
)
def test_lenet5_learns(strategy, settings, mpi):
    """Two epochs of the digits: vectors of 430 KB, gradients on a second thread."""
    if "dedicated" in settings and mpi.comm.size == 1:
        pytest.skip("needs two ranks")
    recorder = Recorder(events=False)
    keys = {"steps": 22, "evaluate_every": 1.0, "learning_rate": lambda _step: 0.02}
    mine = training.session("ring", "float32", recorder, **keys)
    mpi.run(strategy(mpi.comm, mine, **settings))
    images = mpi.comm.library.allreduce(sum(row.images for row in recorder.steps))
    if "dedicated" not in settings:  # equal shares
        assert images == 22 * GLOBAL_BATCH
    assert [row.step for row in recorder.evaluations] == [11, 22]
    assert recorder.evaluations[-1].accuracy > 0.6
    assert len(set(mpi.comm.library.allgather(recorder.evaluations[-1].accuracy))) == 1
    assert not mpi.comm.library.Iprobe()
