"""Layers: impossible shapes, dropout masks, running statistics, initial values, the loss, auxiliary classifiers."""

import math
from functools import partial

import numpy as np
import pytest

from hpcdl.commands.parts.contracts import gradient_errors
from hpcdl.nn.composite import Auxiliary, Concat, Residual
from hpcdl.nn.layer import SoftmaxCrossEntropy, constant
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
)
from hpcdl.nn.replica import Replica

from .conftest import host


def test_impossible_shapes_name_the_layer():
    for layer, shape, message in [
        (Convolution("c1", 4, 5), (4, 8, 3), r"^c1: kernel 5x5 is larger than the padded image 4x8$"),
        (Convolution("c1", 4, 3, groups=2), (8, 8, 3), r"^c1: 2 groups do not divide 3 channels, 4 filters$"),
        (Convolution("c1", 4, 3, groups=0), (8, 8, 4), r"^c1: 0 groups"),
        (Convolution("c1", 0, 3), (8, 8, 4), r"^c1: .* 0 filters$"),
        (Convolution("c1", 4, 3, stride=0), (8, 8, 4), r"^c1: .*stride \(0, 0\)"),
        (Convolution("c1", 4, 3), (20,), r"^c1: needs an image .*\(20,\)$"),
        (AveragePooling("p1", 2, padding=2), (8, 8, 3), r"^p1: padding \(2, 2\)"),
        (MaxPooling("p1", 2, mode="round"), (8, 8, 3), r"^p1: rounding 'round'"),
        (GlobalAverage("g1"), (12,), r"^g1: needs an image"),
        (Linear("l1", 3), (2, 2, 3), r"^l1: needs vectors, got shape \(2, 2, 3\)"),
        (Linear("l1", 0), (3,), r"^l1: needs at least 1 output, got 0$"),
        (LRN("n1", 4), (2, 2, 3), r"^n1: size must be odd and positive, got 4$"),
        (Dropout("d1", 1.0), (2,), r"^d1: ratio must be .* got 1\.0$"),
        (BatchNorm("b1", eps=0), (2,), r"^b1: eps"),
        (BatchNorm("b1", momentum=1.5), (2,), r"^b1: .*1\.5$"),
        (Concat("m1", [[Convolution("a", 2, 1)], [Convolution("b", 2, 3)]]), (5, 5, 2), r"^m1: branches end in"),
        (Concat("m1", [[]]), (5, 5, 2), r"^m1: needs two branches or more, got 1$"),
        (Residual("r1", [Convolution("a", 2, 1)]), (5, 5, 3), r"^r1: .*\(5, 5, 2\).*\(5, 5, 3\)$"),
    ]:
        with pytest.raises(ValueError, match=message) as caught:
            layer.output(shape)
        assert "\n" not in str(caught.value)


def test_dropout_masks(kernels):
    replica = Replica([Dropout("a", 0.25), Dropout("b", 0.25)], (40, 50), backend=kernels, dtype="float64", seed=2)
    ones = kernels.asarray(np.ones((3, 40, 50)))

    def mask(stage):
        return host(replica, replica.stages[stage].forward(ones))

    replica.reseed(1, 2, 3)
    first, other_layer, second = mask(0), mask(1), mask(0)
    assert set(np.unique(first)) == {0.0, 1 / 0.75}
    assert np.mean(first == 0) == pytest.approx(0.25, abs=0.02)
    assert np.mean(first == other_layer) < 0.7
    assert np.mean(first == second) < 0.7
    replica.reseed(1, 2, 3)
    # independent of other layers: a rank with some of the stages draws the same masks
    np.testing.assert_array_equal(mask(1), other_layer)
    np.testing.assert_array_equal(mask(0), first)
    for key in [(1, 2, 4), (1, 3, 3), (1, 2), ()]:
        replica.reseed(*key)
        assert np.mean(mask(0) == first) < 0.7
    np.testing.assert_array_equal(host(replica, replica.predict(ones)), np.ones((3, 40, 50)))


def test_running_statistics_by_hand(kernels):
    replica = Replica([BatchNorm("b", momentum=0.75)], (2,), backend=kernels, dtype="float64")
    x = np.array([[1.0, 10.0], [3.0, 10.0], [5.0, 40.0]])
    replica.stages[0].forward(kernels.asarray(x))
    mean, unbiased = np.array([3.0, 20.0]), np.array([4.0, 300.0])
    expected = np.concatenate([0.25 * mean, 0.75 + 0.25 * unbiased])
    np.testing.assert_allclose(host(replica, replica.state), expected, rtol=1e-12)
    evaluated = host(replica, replica.predict(kernels.asarray(x)))
    np.testing.assert_allclose(evaluated, (x - expected[:2]) / np.sqrt(expected[2:] + 1e-5), rtol=1e-12)


def test_initialisers_reach_their_tensors(kernels):
    layers = [LocallyConnected("u", 8, 3, padding=1), Convolution("c", 200, 5, bias=constant(0.2))]
    layers += [Flatten("f"), Linear("l", 300)]
    replica = Replica(layers, (5, 5, 8), backend=kernels, dtype="float64")
    vector = host(replica, replica.parameters)
    views = {t.name: vector[t.span] for t in replica.tensors}
    assert views["u.weight"].std() == pytest.approx(np.sqrt(2 / 72), rel=0.02)
    assert views["c.weight"].std() == pytest.approx(np.sqrt(2 / 200), rel=0.02)
    np.testing.assert_array_equal(views["c.bias"], 0.2)
    bound = np.sqrt(3 / 200)
    assert 0.99 * bound < np.abs(views["l.weight"]).max() <= bound
    assert views["l.weight"].std() == pytest.approx(np.sqrt(1 / 200), rel=0.02)
    np.testing.assert_array_equal(views["l.bias"], 0.0)


@pytest.fixture
def loss(kernels):
    op = SoftmaxCrossEntropy(3, kernels, "float64")

    def run(logits, labels, scale=1.0):
        given = kernels.asarray(np.asarray(logits, float)), kernels.asarray(np.asarray(labels))
        total, correct, gradient = op(*given, scale)
        return total, correct, kernels.to_host(gradient).copy()

    return run


def test_equal_logits_cost_log_of_the_classes_and_huge_ones_stay_finite(loss):
    total, correct, gradient = loss([[2.0, 2.0, 2.0]] * 2, [0, 1], scale=0.5)
    assert total == pytest.approx(2 * math.log(3))
    assert correct == 1  # the first of the largest is class 0
    np.testing.assert_allclose(gradient, [[-1 / 3, 1 / 6, 1 / 6], [1 / 6, -1 / 3, 1 / 6]])
    total, correct, gradient = loss([[1e5, 0.0, -1e5], [-1e5, 1e5, 0.0]], [0, 0])
    assert (total, correct) == (pytest.approx(2e5), 1)
    np.testing.assert_allclose(gradient, [[0, 0, 0], [-1, 1, 0]])


def test_labels_and_shapes_that_do_not_fit(loss):
    other_class, other_shape = r"^labels from -?\d to \d, but classes are 0 to 2$", r"^loss: logits"
    wrong = [((2, 3), [0, 3], other_class), ((2, 3), [-1, 0], other_class)]
    for logits, labels, message in [*wrong, ((2, 3), [0] * 3, other_shape), ((2, 4), [0] * 2, other_shape)]:
        with pytest.raises(ValueError, match=message):
            loss(np.zeros(logits), labels)


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


def test_invalid_classifiers(build):
    for head, weight, message in [
        ([Convolution("conv", 3, 9)], 0.3, r"\.conv: kernel 9x9 is larger than the padded image 4x5"),
        ([Convolution("conv", 3, 1)], 0.3, r": the classifier ends in \(4, 5, 3\), not in a vector of logits"),
        ([Flatten("f"), Linear("fc", 4)], 0.3, r": 4 classes, but the network ends in \(3,\)"),
        ([Flatten("f"), Linear("fc", 3)], 0.0, r": weight must be positive, got 0\.0"),
    ]:
        with pytest.raises(ValueError, match=f"^loss1{message}$"):
            build([Auxiliary("loss1", head, weight=weight), *network(heads=False)])
