"""Dropout masks, running statistics, initial parameters, and the loss."""

import math

import numpy as np
import pytest

from hpcdl.nn.layer import SoftmaxCrossEntropy, constant
from hpcdl.nn.layers import BatchNorm, Convolution, Dropout, Flatten, Linear, LocallyConnected
from hpcdl.nn.replica import Replica

from .conftest import host


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


def test_equal_logits_cost_log_of_the_classes(loss):
    total, correct, gradient = loss([[2.0, 2.0, 2.0]] * 2, [0, 1], scale=0.5)
    assert total == pytest.approx(2 * math.log(3))
    assert correct == 1  # the first of the largest is class 0
    np.testing.assert_allclose(gradient, [[-1 / 3, 1 / 6, 1 / 6], [1 / 6, -1 / 3, 1 / 6]])


def test_huge_logits_stay_finite(loss):
    total, correct, gradient = loss([[1e5, 0.0, -1e5], [-1e5, 1e5, 0.0]], [0, 0])
    assert total == pytest.approx(2e5)
    assert correct == 1
    np.testing.assert_allclose(gradient, [[0, 0, 0], [-1, 1, 0]])


@pytest.mark.parametrize("labels", [[0, 3], [-1, 0]])
def test_labels_outside_the_classes(loss, labels):
    with pytest.raises(ValueError, match=r"^labels from -?\d to \d, but classes are 0 to 2$"):
        loss(np.zeros((2, 3)), labels)


def test_shapes_that_do_not_fit(loss):
    for logits, labels in [((2, 3), 3), ((2, 4), 2)]:
        with pytest.raises(ValueError, match=r"^loss: logits"):
            loss(np.zeros(logits), np.zeros(labels, int))
