"""The loss: known values, stability, gradient, errors."""

import math

import numpy as np
import pytest

from hpcdl.nn.loss import SoftmaxCrossEntropy


@pytest.fixture
def loss(kernels):
    op = SoftmaxCrossEntropy(3, kernels, "float64")

    def run(logits, labels, scale=1.0):
        total, correct, gradient = op(
            kernels.asarray(np.asarray(logits, float)), kernels.asarray(np.asarray(labels)), scale
        )
        return total, correct, kernels.to_host(gradient).copy()

    return run


def test_equal_logits_cost_log_of_the_classes(loss):
    total, correct, gradient = loss([[2.0, 2.0, 2.0]] * 2, [0, 1], scale=0.5)
    assert total == pytest.approx(2 * math.log(3))
    assert correct == 1  # the first of the largest is class 0
    np.testing.assert_allclose(gradient, [[-1 / 3, 1 / 6, 1 / 6], [1 / 6, -1 / 3, 1 / 6]])


def test_gradient_is_the_derivative_times_the_scale(loss):
    random = np.random.default_rng(1)
    logits, labels = random.standard_normal((4, 3)), random.integers(0, 3, 4)
    _, _, gradient = loss(logits, labels, scale=0.125)
    for i in np.ndindex(logits.shape):
        up, down = logits.copy(), logits.copy()
        up[i] += 1e-5
        down[i] -= 1e-5
        slope = (loss(up, labels)[0] - loss(down, labels)[0]) / 2e-5
        assert gradient[i] == pytest.approx(0.125 * slope, abs=1e-8)


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
