"""Networks and vectors divided among ranks, over MPI: they equal one rank, and every image counts once."""

from functools import cache, partial

import numpy as np
import pytest
from contract import quadratic, quartic
from contract.divided import CASES, CONVOLUTIONAL, LOCAL, SHAPE, TOLERANCE, by_one_rank, furthest, train_divided

from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.nn.layers.elementwise import Dropout
from hpcdl.trace.recorder import Recorder, Step
from hpcdl.training.layerwise import layerwise
from hpcdl.training.parameter_servers import downpour, ssp
from hpcdl.training.parts.split.mesh import Mesh
from hpcdl.training.sandblaster import sandblaster

pytestmark = pytest.mark.mpi

needs_two = pytest.mark.mpi(min_size=2)
STEPS = 5
WITHOUT_DROPOUT = [layer for layer in CONVOLUTIONAL if not isinstance(layer, Dropout)]
HYBRID = [(WITHOUT_DROPOUT, {"split": "hybrid", "exchange": exchange}) for exchange in ("turns", "slices")]


def pairs_of(size, **settings):
    """Return a mesh of pairs of ranks, or of one group of all ranks if their number is odd."""
    return Mesh(model=2 if size % 2 == 0 else size, **settings)


@needs_two
@pytest.mark.parametrize(
    ("layers", "settings"),
    [*((layers, {"split": split, "linear": linear}) for layers, split, linear in CASES), *HYBRID],
)
def test_one_model_group_equals_one_rank(layers, settings, mpi):
    if mpi.comm.size > 7:
        pytest.skip("layers have 7 filters")
    mesh = Mesh(model=mpi.comm.size, **settings)
    mine, division = mpi.run(train_divided(mpi.comm, layers, SHAPE, mesh, steps=STEPS))
    assert furthest(mine, division, by_one_rank(layers, SHAPE, steps=STEPS)) < TOLERANCE


@needs_two
@pytest.mark.parametrize(
    ("strategy", "layers", "split"),
    [
        (layerwise, WITHOUT_DROPOUT, "hybrid"),  # sums of gradients are under way beside activations
        (partial(ssp, collect="all", bound=0), LOCAL, "model"),
    ],
)
def test_several_model_groups_equal_one_rank(strategy, layers, split, mpi):
    lengths = {"steps": STEPS, "global_batch": 4 * mpi.comm.size}
    mesh = pairs_of(mpi.comm.size, split=split)
    mine, division = mpi.run(train_divided(mpi.comm, layers, SHAPE, mesh, strategy=strategy, **lengths))
    assert furthest(mine, division, by_one_rank(layers, SHAPE, **lengths)) < TOLERANCE


@needs_two
@pytest.mark.parametrize(
    "strategy",
    [partial(downpour, overlap=True, n_fetch=2, n_push=3), partial(sandblaster, portions_per_worker=3)],
)
def test_every_image_counts_once(strategy, mpi):
    size, recorder = mpi.comm.size, Recorder(events=False)
    lengths = {"steps": STEPS, "evaluate_every": 0.5, "global_batch": 4 * size, "recorders": [recorder] * size}
    mpi.run(train_divided(mpi.comm, LOCAL, SHAPE, pairs_of(size), strategy=strategy, **lengths))
    images = sum(Step(*row).images for row in recorder.steps)
    assert mpi.comm.library.allreduce(images) == STEPS * 4 * size


@cache
def alone(size):
    """Return the parameters of one rank, which another test compares with a plain loop."""
    return in_process(1).run(lambda comm: quartic.descend(comm, quartic.session(size=size, steps=STEPS)))[0]


@pytest.mark.parametrize(("servers", "backup", "size"), [(0, True, 10_007), (1, True, 7), (3, False, 10_007)])
def test_sandblaster_on_any_number_of_ranks_equals_one_rank(servers, backup, size, mpi):
    if servers and mpi.comm.size < servers + 2:
        pytest.skip("needs more ranks")
    recorder = Recorder(events=False)
    mine = quartic.session(recorder, size=size, steps=STEPS)
    found = mpi.run(quartic.descend(mpi.comm, mine, servers=servers, backup=backup))
    library = mpi.comm.library
    assert len(set(library.allgather(found.tobytes()))) == 1
    if mpi.comm.rank == 0:  # all ranks have equal parameters
        np.testing.assert_allclose(found, alone(size), rtol=0, atol=quartic.TOLERANCE)
    mpi.comm.sleeping_barrier()
    assert library.allreduce(sum(row.images for row in recorder.steps)) == STEPS * quadratic.IMAGES
