"""Model parallelism over MPI equals training on one rank."""

import pytest
from contract.divided import CASES, CONVOLUTIONAL, SHAPE, TOLERANCE, by_one_rank, furthest, train_divided

from hpcdl.nn.layers.elementwise import Dropout
from hpcdl.training.layerwise import layerwise
from hpcdl.training.parts.split.mesh import Mesh

pytestmark = pytest.mark.mpi


@pytest.fixture(autouse=True)
def group(mpi):
    if mpi.comm.size == 1:
        pytest.skip("a network is divided among two ranks or more")


def group_of(size):
    """Return the size of one model group of all ranks; skip the test if the layers have too few filters for it."""
    if size > 7:
        pytest.skip("layers have 7 filters")
    return size


@pytest.mark.parametrize(("layers", "split", "linear"), CASES)
def test_one_model_group_equals_one_rank(layers, split, linear, mpi):
    mesh = Mesh(model=group_of(mpi.comm.size), split=split, linear=linear)
    mine, division = mpi.run(train_divided(mpi.comm, layers, SHAPE, mesh, steps=5))
    assert furthest(mine, division, by_one_rank(layers, SHAPE, steps=5)) < TOLERANCE


def test_gradients_overlap_with_activations(mpi):
    """Layerwise sums of gradients are under way while the next forward gathers activations."""
    size = mpi.comm.size
    mesh = Mesh(model=2 if size % 2 == 0 else size, split="hybrid")
    layers = [layer for layer in CONVOLUTIONAL if not isinstance(layer, Dropout)]
    settings = {"steps": 5, "global_batch": 24 if 24 % size == 0 else 4 * size}
    mine, division = mpi.run(train_divided(mpi.comm, layers, SHAPE, mesh, strategy=layerwise, **settings))
    assert furthest(mine, division, by_one_rank(layers, SHAPE, **settings)) < TOLERANCE


@pytest.mark.parametrize("exchange", ["turns", "slices"])
def test_passes_overlap_messages_with_work(exchange, mpi):
    mesh = Mesh(model=group_of(mpi.comm.size), split="hybrid", exchange=exchange)
    layers = [layer for layer in CONVOLUTIONAL if not isinstance(layer, Dropout)]
    mine, division = mpi.run(train_divided(mpi.comm, layers, SHAPE, mesh, steps=5))
    assert furthest(mine, division, by_one_rank(layers, SHAPE, steps=5)) < TOLERANCE
