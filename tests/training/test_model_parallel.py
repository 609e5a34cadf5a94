"""Every split of every kind of layer trains as the undivided network does."""

import pytest
from contract.divided import CLASSES, by_one_rank, furthest, train_divided

from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.nn.initial import gaussian
from hpcdl.nn.layers.batch_norm import BatchNorm
from hpcdl.nn.layers.convolution import Convolution
from hpcdl.nn.layers.dropout import Dropout
from hpcdl.nn.layers.flatten import Flatten
from hpcdl.nn.layers.linear import Linear
from hpcdl.nn.layers.locally_connected import LocallyConnected
from hpcdl.nn.layers.lrn import LRN
from hpcdl.nn.layers.pooling import AveragePooling, GlobalAverage, MaxPooling
from hpcdl.nn.layers.relu import ReLU
from hpcdl.nn.layers.sigmoid import Sigmoid
from hpcdl.training.parts.mesh import Mesh

TOLERANCE = 1e-10

SHAPE = (13, 11, 3)
"""No size is divisible by 2, 3 or 4, except the batch."""

CONVOLUTIONAL = [
    Convolution("conv1", 7, 3, padding=1, relu=True),
    LRN("norm1", 3),
    MaxPooling("pool1", 3, stride=2),
    Convolution("conv2", 5, (5, 3), stride=(1, 2), padding=(2, 0), bias=gaussian(0.1)),
    ReLU("relu2"),
    AveragePooling("pool2", 2, stride=1, padding=1),
    Dropout("drop2", 0.3),
    Flatten("flatten"),
    Linear("fc1", 11, relu=True, bias=gaussian(0.1)),
    Dropout("drop1", 0.5),
    Linear("fc2", 9, bias=None),
    Sigmoid("sigmoid"),
    Linear("fc3", CLASSES),
]

NORMALISED = [
    Convolution("conv1", 6, 3, stride=2, bias=None),
    BatchNorm("bn1", gamma=gaussian(1.0), relu=True),
    MaxPooling("pool1", 2),
    Convolution("conv2", 5, 3, padding=1),
    GlobalAverage("pool2"),
    BatchNorm("bn2"),
    Linear("fc", CLASSES),
]

LOCAL = [
    LocallyConnected("local1", 4, 3, relu=True),
    MaxPooling("pool1", 2),
    LRN("norm1", 3),
    LocallyConnected("local2", 3, 2, stride=1, padding=1, bias=None),
    AveragePooling("pool2", 3, stride=2),
    Flatten("flatten"),
    Linear("fc", CLASSES),
]

CASES = [
    (CONVOLUTIONAL, "model", "outputs"),
    (CONVOLUTIONAL, "space", "inputs"),
    (NORMALISED, "model", "inputs"),
    (LOCAL, "model", "outputs"),
    (LOCAL, "space", "inputs"),
]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("layers", "split", "linear"), CASES)
def test_equals_the_undivided_network(layers, split, linear, ranks):
    alone = by_one_rank(layers, SHAPE)
    mesh = Mesh(model=ranks, split=split, linear=linear)
    for mine, division in in_process(ranks, seed=ranks).run(lambda comm: train_divided(comm, layers, SHAPE, mesh)):
        assert furthest(mine, division, alone) < TOLERANCE
