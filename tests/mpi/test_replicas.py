"""Replicas that span ranks, over MPI."""

from functools import partial

import pytest
from contract.divided import LOCAL, SHAPE, TOLERANCE, by_one_rank, furthest, train_divided

from hpcdl.trace.recorder import Recorder, Step
from hpcdl.training.parameter_averaging import parameter_averaging
from hpcdl.training.parameter_servers import downpour, ssp
from hpcdl.training.parts.split.mesh import Mesh
from hpcdl.training.sandblaster import sandblaster

pytestmark = pytest.mark.mpi

LENGTHS = {"steps": 5, "evaluate_every": 0.5}


def mesh_of(size):
    if size == 1:
        pytest.skip("a network is divided among two ranks or more")
    return Mesh(model=2 if size % 2 == 0 else size)


@pytest.mark.parametrize(
    "strategy", [partial(ssp, collect="all", bound=0), partial(parameter_averaging, period=1)]
)
def test_fixed_order_equals_one_rank(strategy, mpi):
    mesh, lengths = mesh_of(mpi.comm.size), {**LENGTHS, "global_batch": 4 * mpi.comm.size}
    mine, division = mpi.run(train_divided(mpi.comm, LOCAL, SHAPE, mesh, strategy=strategy, **lengths))
    assert furthest(mine, division, by_one_rank(LOCAL, SHAPE, **lengths)) < TOLERANCE


@pytest.mark.parametrize(
    "strategy",
    [
        partial(downpour, overlap=True, n_fetch=2, n_push=3),
        partial(ssp, bound=1),
        partial(sandblaster, portions_per_worker=3),
    ],
)
def test_every_image_counts_once(strategy, mpi):
    size = mpi.comm.size
    mesh, lengths = mesh_of(size), {**LENGTHS, "global_batch": 4 * size}
    recorder = Recorder(events=False)
    recorders = [recorder] * size
    mpi.run(train_divided(mpi.comm, LOCAL, SHAPE, mesh, strategy=strategy, recorders=recorders, **lengths))
    images = sum(Step(*row).images for row in recorder.steps)
    assert mpi.comm.library.allreduce(images) == LENGTHS["steps"] * 4 * size
