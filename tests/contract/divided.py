"""Trainings of networks that are divided among model groups, and the same trainings by one rank."""

import numpy as np

from contract.sessions import SEED, noise, silent_journal, training_session
from contract.training import LEARNING_RATE
from hpcdl.aggregation.ring import ring
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.nn.backend import backend
from hpcdl.nn.composite import Auxiliary, Concat, Residual
from hpcdl.nn.layer import gaussian
from hpcdl.nn.layers import (
    LRN,
    AveragePooling,
    BatchNorm,
    Convolution,
    Dropout,
    Flatten,
    GlobalAverage,
    Linear,
    LocallyConnected,
    MaxPooling,
    ReLU,
    Sigmoid,
    Subsampling,
)
from hpcdl.nn.replica import Replica
from hpcdl.nn.split.division import divide
from hpcdl.optim.sgd import SGD
from hpcdl.training.parts.mesh import ModelGroup, placed
from hpcdl.training.synchronous import synchronous

STEPS = 5
CLASSES = 7
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

RESIDUAL = [
    Convolution("conv1", 5, 3, padding=1, bias=None),
    BatchNorm("bn1", gamma=gaussian(1.0), relu=True),
    Residual(
        "block1",
        [
            Convolution("conv1", 5, 3, padding=1, bias=None),
            BatchNorm("bn1", gamma=gaussian(1.0), relu=True),
            Dropout("drop", 0.2),
            Convolution("conv2", 5, 3, padding=1),
            BatchNorm("bn2", gamma=gaussian(1.0)),
        ],
        relu=True,
    ),
    Residual(
        "block2",
        [Convolution("conv1", 7, 3, stride=2, padding=1), BatchNorm("bn1"), ReLU("relu1")],
        [Convolution("project", 7, 1, stride=2, bias=None), BatchNorm("project_bn", momentum=0.7)],
    ),
    Residual(
        "block3", [Convolution("conv1", 9, 3, padding=1)], [Subsampling("subsample", 9, stride=1)], relu=True
    ),
    BatchNorm("bn2"),
    GlobalAverage("pool"),
    Residual("block4", [Linear("fc1", 9, relu=True), BatchNorm("bn1"), Linear("fc2", 9)]),
    Linear("fc", CLASSES),
]

INCEPTION = [
    Convolution("conv1", 5, 3, padding=1, relu=True),
    Concat(
        "inception1",
        [
            [Convolution("1x1", 5, 1)],
            [Convolution("3x3_reduce", 5, 1, relu=True), Convolution("3x3", 6, 3, padding=1), BatchNorm("bn")],
            [MaxPooling("pool", 3, stride=1, padding=1), Convolution("project", 5, 1)],
        ],
    ),
    BatchNorm("bn1", gamma=gaussian(0.5)),
    Auxiliary(
        "loss1",
        [
            AveragePooling("pool", 3, stride=2),
            Convolution("conv", 5, 1, relu=True),
            Flatten("flatten"),
            Linear("fc", 8),
            Dropout("drop", 0.5),
            Linear("classifier", CLASSES),
        ],
    ),
    MaxPooling("pool1", 3, stride=2),
    Concat(
        "inception2", [[Residual("block", [Convolution("conv", 16, 3, padding=1)])], [Convolution("1x1", 5, 1)]]
    ),
    BatchNorm("bn2", gamma=gaussian(0.5)),
    Flatten("flatten"),
    Linear("fc1", 9),
    Linear("fc2", CLASSES),
]

CASES = [
    (CONVOLUTIONAL, "model", "outputs"),
    (CONVOLUTIONAL, "space", "inputs"),
    (NORMALISED, "model", "inputs"),
    (LOCAL, "model", "outputs"),
    (LOCAL, "space", "inputs"),
    (RESIDUAL, "model", "outputs"),
    (RESIDUAL, "space", "inputs"),
    (INCEPTION, "model", "inputs"),
    (INCEPTION, "space", "outputs"),
]


def session_of(layers, shape, recorder=None, place=None, division=None, exchange="all", **settings):
    dtype = settings.pop("dtype", "float64")
    replica = Replica(layers, shape, backend=backend("numpy"), dtype=dtype, seed=SEED, division=division)
    defaults = {
        "optimizer": SGD(momentum=0.9, weight_decay=2e-4),
        "aggregate": ring,
        "dataset": noise(shape, 96, 19, CLASSES),
        "journal": silent_journal(recorder),
        "learning_rate": lambda _step: LEARNING_RATE,
        "global_batch": 24,
        "steps": STEPS,
        "group": None if place is None else ModelGroup(place, division, replica, exchange),
    }
    return training_session(replica=replica, **defaults | settings)


async def train_divided(comm, layers, shape, mesh, *, strategy=synchronous, recorders=None, **settings):
    """Train on one rank of a mesh; return its session and its parts."""
    place = await placed(comm, mesh.model)
    division = divide(layers, shape, split=mesh.split, linear=mesh.linear, rank=place.model.rank, ranks=mesh.model)
    mine = session_of(
        layers, shape, recorders and recorders[comm.rank], place, division, mesh.exchange, **settings
    )
    await strategy(comm, mine)
    return mine, division


def by_one_rank(layers, shape, **settings):
    """Return the session of the same training on one rank."""
    mine = session_of(layers, shape, **settings)
    in_process(1).run(lambda comm: synchronous(comm, mine))
    return mine


def parameters(session):
    replica = session.replica
    return {tensor.name: replica.parameters[tensor.span].reshape(tensor.shape) for tensor in replica.tensors}


def furthest(divided, division, alone):
    """Return the largest difference between a rank's parameters and its part of the undivided network's."""
    mine, whole = parameters(divided), parameters(alone)
    differences = [0.0]
    for part, local in zip(division.parts, division.shapes, strict=True):
        for variable in part.declare(local) if not part.cuts else ():
            name = f"{part.name}.{variable.name}"
            if variable.trained:
                differences.append(np.abs(mine[name] - whole[name]).max())
        for name, cut in part.cuts.items():
            if cut.whole.trained:
                expected = whole[f"{part.of or part.name}.{name}"].reshape(cut.view)[
                    (*[slice(None)] * cut.axis, cut.own)
                ]
                differences.append(np.abs(mine[f"{part.name}.{name}"].reshape(expected.shape) - expected).max())
    return max(differences)
