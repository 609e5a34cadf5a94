"""Division of networks: layouts that fit, and layers that cannot be split."""

import tracemalloc

import numpy as np
import pytest

from hpcdl.nn.backend import backend
from hpcdl.nn.composite import Concat, Residual
from hpcdl.nn.layers import Convolution, Flatten, Linear, LocallyConnected
from hpcdl.nn.replica import Replica
from hpcdl.nn.split.division import SPLITS, divide
from hpcdl.nn.split.layers import windowed


def test_a_layer_that_cannot_be_split_is_named():
    one, flat = Convolution("conv1", 3, 1), Flatten("flatten")
    flattened = "a branch that ends in a flattened image cannot be split"
    for layers, split, message in [
        ([Convolution("conv1", 3, 3)], "model", "conv1: 3 filters cannot be split among 4 ranks"),
        ([Convolution("conv1", 8, 3, groups=4)], "model", "conv1: filters in 4 groups cannot be split"),
        ([Convolution("conv1", 8, 5)], "space", "conv1: 3 rows of outputs cannot be split among 4 ranks"),
        ([LocallyConnected("local1", 8, 6)], "model", "local1: 2 rows of outputs cannot be split among 4 ranks"),
        ([Flatten("flatten"), Linear("fc", 3)], "hybrid", "fc: 3 outputs cannot be split among 4 ranks"),
        ([Residual("block", [one], [one])], "model", "block.conv1: 3 filters cannot be split among 4 ranks"),
        ([Concat("block", [[Convolution("conv1", 4, 1), flat], [flat]])], "model", f"block: {flattened}"),
    ]:
        with pytest.raises(ValueError, match=f"^{message}"):
            divide(layers, (7, 7, 4), split=split, linear="outputs", rank=0, ranks=4)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("linear", ["outputs", "inputs"])
def test_the_parts_of_the_ranks_are_the_whole_layer(split, linear):
    """Each parameter is held by one rank, or by all."""
    layers = [LocallyConnected("local1", 3, 2), Convolution("conv1", 5, 3, padding=1, relu=True)]
    layers += [Flatten("flatten"), Linear("fc", 7)]
    whole, shape = {}, (9, 8, 2)
    for layer in layers:
        whole |= {f"{layer.name}.{one.name}": np.zeros(one.shape) for one in layer.declare(shape)}
        shape = layer.output(shape)
    for rank in range(3):
        for part in divide(layers, (9, 8, 2), split=split, linear=linear, rank=rank, ranks=3).parts:
            for name, cut in part.cuts.items():
                held = whole[f"{part.of or part.name}.{name}"].reshape(cut.view)
                held[(*[slice(None)] * cut.axis, cut.own)] += 1
    divided = {"hybrid": ("fc",), "space": ("fc", "local"), "model": ("fc", "local", "conv")}[split]
    for name, held in whole.items():
        assert set(np.unique(held)) == {float(name.startswith(divided))}, name


def test_rows_that_windows_read():
    """The drawing of the module: 7 rows, kernel 3, padding 1, two ranks."""
    takes, gives = windowed(Convolution("conv", 4, 3, padding=1), (7, 5, 2), 2)
    assert (takes.ranges, gives.ranges) == (((-1, 5), (3, 8)), ((0, 4), (4, 7)))


def test_a_rank_draws_its_part_of_the_layers_alone():
    """An eighth of 2048 x 4096 weights; memory for the layer would be eight times as much."""
    for linear in ["outputs", "inputs"]:
        layers = [Linear("a", 2048), Linear("b", 2048)]
        division = divide(layers, (4096,), split="model", linear=linear, rank=1, ranks=8)
        share = 2 * 4 * division.parameters  # with gradients
        tracemalloc.start()
        Replica(layers, (4096,), backend=backend("numpy"), division=division)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert share < peak < 1.5 * share
