"""Bytes of every split of every kind of layer: the closed forms of the docstrings (Gholami et al. 2018)."""

from math import prod

import pytest
from contract.divided import session_of

from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.nn.layers.affine import Convolution, Linear, LocallyConnected
from hpcdl.nn.layers.elementwise import Flatten
from hpcdl.nn.layers.normalization import BatchNorm
from hpcdl.nn.layers.pooling import AveragePooling, MaxPooling
from hpcdl.nn.split.division import divide
from hpcdl.nn.split.layers import (
    batch_norm_by_positions,
    convolution_by_filters,
    convolution_by_rows,
    linear_by_inputs,
    linear_by_outputs,
    locally_connected_by_rows,
    pooling_by_rows,
)
from hpcdl.prediction.parallelism import stated, variables
from hpcdl.training.parts.split.flow import ModelParallel
from hpcdl.training.parts.split.mesh import placed
from hpcdl.training.parts.split.model_group import ModelGroup

IMAGE = (13, 7, 3)
BATCH = 11

INSTANCES = [
    # splitter, split, layers before, the layer, variables of the formula
    (convolution_by_filters, "model", [Convolution("first", 5, 1)], Convolution("conv", 6, 3), "H W C"),
    (convolution_by_rows, "space", [Convolution("first", 5, 1)], Convolution("conv", 6, 5, padding=2), "k W C"),
    (
        locally_connected_by_rows,
        "model",
        [LocallyConnected("first", 5, 1)],
        LocallyConnected("local", 4, (4, 2), stride=(2, 1), padding=(1, 0)),
        "h W C",
    ),
    (linear_by_outputs, "model", [Flatten("flatten"), Linear("first", 19)], Linear("fc", 9), "d"),
    (linear_by_outputs, "hybrid", [Convolution("first", 5, 1), Flatten("flatten")], Linear("fc", 9), "d"),
    (linear_by_inputs, "space", [Convolution("first", 5, 1), Flatten("flatten")], Linear("fc", 17), "d"),
    (pooling_by_rows, "space", [Convolution("first", 5, 1)], MaxPooling("pool", 3, stride=2), "h W C"),
    (pooling_by_rows, "space", [Convolution("first", 5, 1)], AveragePooling("pool", 4, padding=1), "h W C"),
    (batch_norm_by_positions, "space", [Convolution("first", 5, 1)], BatchNorm("bn"), "C"),
]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(("splitter", "split", "before", "layer", "names"), INSTANCES)
def test_counted_bytes_are_the_closed_form(splitter, split, before, layer, names, ranks):
    by = "inputs" if splitter is linear_by_inputs else "outputs"
    world = in_process(ranks)
    layers = [*before, layer]
    shape = IMAGE
    for one in before:
        shape = one.output(shape)
    values = variables(layer, shape, splitter, BATCH, ranks)
    assert set(names.split()) <= set(values)
    if names == "k W C":
        assert values["h"] == (ranks - 1) * 2 * (layer.window.kernel[0] // 2)

    async def program(comm):
        place = await placed(comm, ranks)
        division = divide(layers, IMAGE, split=split, linear=by, rank=comm.rank, ranks=ranks)
        replica = session_of((), IMAGE, division=division).replica
        flow = ModelParallel(place.model, division, replica.stages)
        images = ModelGroup(place, division, replica).shares(BATCH)
        # the boundary where the layer takes its inputs, or gives its sums or its moments
        number = len(before) + (splitter in {linear_by_inputs, batch_norm_by_positions})
        box = division.boundaries[number][0].boxes(images)[comm.rank]
        x = replica.backend.zeros(prod(high - low for low, high in box), "float64")
        start = world.bytes[comm.rank]
        moved = await flow.forward(number, x, images)
        middle = world.bytes[comm.rank]
        await flow.backward(number, moved, images)
        return middle - start, world.bytes[comm.rank] - middle

    forward, backward = zip(*world.run(program), strict=True)
    assert sum(forward) == 8 * stated(splitter, "Forward", values)
    assert sum(backward) == 8 * stated(splitter, "Backward", values)
