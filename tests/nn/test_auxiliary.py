"""Auxiliary classifiers: their parts of loss and gradients, and their absence in evaluation."""

from functools import partial

import numpy as np
import pytest

from hpcdl.commands.parts.array_contracts import gradient_errors
from hpcdl.nn.composite import Auxiliary
from hpcdl.nn.layers import Convolution, Flatten, GlobalAverage, Linear
from hpcdl.nn.replica import Replica

from .conftest import host

SHAPE, CLASSES = (4, 5, 2), 3


def network(*, heads=True, weight=0.3):
    first = [Convolution("conv", 3, 3, relu=True), Flatten("flatten"), Linear("fc", CLASSES)]
    return [
        Convolution("conv1", 4, 3, padding=1, relu=True),
        *([Auxiliary("loss1", first, weight=weight)] if heads else []),
        Convolution("conv2", 4, 3, padding=1, relu=True),
        *([Auxiliary("loss2", [GlobalAverage("pool"), Linear("fc", CLASSES)])] if heads else []),
        Flatten("flatten"),
        Linear("fc", CLASSES),
    ]


@pytest.fixture
def build(kernels):
    return partial(Replica, shape=SHAPE, backend=kernels, dtype="float64", seed=1)


@pytest.fixture
def given():
    random = np.random.default_rng(3)
    return random.standard_normal((6, *SHAPE)), random.integers(0, CLASSES, 6)


def test_gradients_are_those_of_the_total_loss(build, given):
    replica = build(network())
    assert {t.name for t in replica.tensors} >= {"loss1.conv.weight", "loss1.fc.bias", "loss2.fc.weight"}
    assert not gradient_errors(replica, *given, [tensor.span for tensor in replica.tensors])


def test_evaluation_ignores_auxiliary_classifiers(build, given, step):
    replica, plain = build(network()), build(network(heads=False))
    images, labels = (replica.backend.asarray(array) for array in given)
    vector, shared = host(replica, replica.parameters), {t.name: t for t in replica.tensors}
    for tensor in plain.tensors:
        plain.parameters[tensor.span] = replica.backend.asarray(vector[shared[tensor.name].span])
    logits = replica.predict(images)
    np.testing.assert_array_equal(host(replica, logits), host(plain, plain.predict(images)))
    expected = plain.loss(logits, labels, 1.0)[:2]
    assert replica.loss(logits, labels, 1.0)[:2] == expected
    step(replica, *given, 1.0)
    assert replica.loss(logits, labels, 1.0)[:2] == expected


def test_backward_without_labels_is_an_error(build, given):
    replica = build(network())
    x = replica.backend.asarray(given[0])
    for stage in replica.stages[:2]:
        x = stage.forward(x)
    with pytest.raises(ValueError, match=r"^loss1: backward called without labels$"):
        replica.stages[1].backward(x)


@pytest.mark.parametrize(
    ("head", "weight", "message"),
    [
        ([Convolution("conv", 3, 9)], 0.3, r"^loss1\.conv: kernel 9x9 is larger than the padded image 4x5$"),
        (
            [Convolution("conv", 3, 1)],
            0.3,
            r"^loss1: the classifier ends in \(4, 5, 3\), not in a vector of logits$",
        ),
        ([Flatten("f"), Linear("fc", 4)], 0.3, r"^loss1: 4 classes, but the network ends in \(3,\)$"),
        ([Flatten("f"), Linear("fc", 3)], 0.0, r"^loss1: weight must be positive, got 0\.0$"),
    ],
)
def test_invalid_classifiers(head, weight, message, build):
    with pytest.raises(ValueError, match=message):
        build([Auxiliary("loss1", head, weight=weight), *network(heads=False)])
