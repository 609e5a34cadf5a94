"""Compressed sums over the data groups of a mesh."""

import numpy as np
import pytest
from contract.compression import planned
from contract.divided import CONVOLUTIONAL, SHAPE, TOLERANCE, by_one_rank, furthest, parameters, train_divided

from hpcdl import registry
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.nn.layers.elementwise import Dropout
from hpcdl.training.layerwise import layerwise
from hpcdl.training.parts.split.mesh import Mesh
from hpcdl.training.synchronous import synchronous

LAYERS = [layer for layer in CONVOLUTIONAL if not isinstance(layer, Dropout)]
ALL = {"density": 1.0}


def trained(name, scheme, settings, mesh, ranks, strategy=synchronous, **keys):
    """Return the sessions and the divisions of all ranks."""
    keys |= {"compression": planned(name, scheme, **settings), "aggregate": registry.find("aggregation", scheme)}
    world = in_process(ranks, seed=3)
    return world.run(lambda comm: train_divided(comm, LAYERS, SHAPE, mesh, strategy=strategy, **keys))


@pytest.mark.slow
@pytest.mark.parametrize(("split", "linear"), [("model", "outputs"), ("space", "inputs"), ("hybrid", "outputs")])
@pytest.mark.parametrize(("scheme", "ranks"), [("allgather", 4), ("sparcml", 6)])
def test_a_compressor_that_sends_everything_changes_nothing(scheme, ranks, split, linear):
    mesh = Mesh(data=2, model=ranks // 2, split=split, linear=linear)
    alone = by_one_rank(LAYERS, SHAPE, steps=5)
    strategy = layerwise if ranks == 6 else synchronous
    for mine, division in trained("top_k", scheme, ALL, mesh, ranks, strategy, steps=5):
        assert furthest(mine, division, alone) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "scheme", "settings"),
    [
        ("fp16", "ring", {}),
        ("power_sgd", "ring", {"rank": 1}),
        ("random_k", "butterfly", {"density": 0.1}),
        ("qsgd", "allgather", {}),
        ("top_k", "allgather", {"density": 0.05}),
    ],
)
@pytest.mark.parametrize("split", ["space", "hybrid"])
def test_ranks_keep_the_same_parameters(split, name, scheme, settings):
    """Those with the same part, and all ranks those of layers that are whole; parts are unequal."""
    found = trained(name, scheme, settings, Mesh(data=2, model=3, split=split), 6, steps=3, bucket_bytes=2048)
    tables = [parameters(mine) for mine, _ in found]
    whole = [name for name in tables[0] if name.rpartition(".")[0] in found[0][1].whole]
    assert whole
    for rank, (mine, _) in enumerate(found):
        assert np.array_equal(mine.replica.parameters, found[(rank + 3) % 6][0].replica.parameters)
        assert all(np.array_equal(tables[rank][name], tables[0][name]) for name in whole)
