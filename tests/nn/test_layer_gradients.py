"""Every layer's backward compared with finite differences of its forward, in float64."""

import numpy as np
import pytest

from hpcdl.commands.parts.contracts import gradient_errors
from hpcdl.nn.composite import Concat, Residual
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

from .conftest import BACKENDS, Probe, kernels_of

EPS = 1e-5

some = gaussian(1.0)

BRANCHES = [
    [Convolution("a", 2, 1)],
    [Convolution("b", 2, 1), ReLU("relu"), Convolution("c", 3, 3, padding=1)],
    [MaxPooling("pool", 3, stride=1, padding=1), Convolution("d", 1, 1)],
    [],
]
STRAIGHT = [Convolution("a", 3, 3, padding=1)]
HALVING = [Convolution("a", 4, 3, stride=2, padding=1), ReLU("relu"), Convolution("b", 4, 1)]
CASES = {
    "conv 3x3 padded": (Convolution("c", 4, 3, padding=1, bias=some), (5, 7, 3), 2),
    "conv 2 groups": (Convolution("c", 6, 3, padding=1, groups=2, bias=some), (5, 4, 4), 2),
    "conv of the whole image": (Convolution("c", 3, (4, 3)), (4, 3, 2), 3),
    "conv 1x7": (Convolution("c", 2, (1, 7), padding=(0, 3)), (3, 8, 2), 1),
    "conv 1x1": (Convolution("c", 5, 1, bias=some), (3, 4, 3), 2),
    "conv 1x1 padded": (Convolution("c", 2, 1, padding=1, bias=some), (2, 3, 2), 1),
    "local 3x3": (LocallyConnected("u", 4, 3, bias=some), (5, 4, 2), 2),
    "linear": (Linear("l", 4, bias=some), (7,), 3),
    "max 3/2 ceil": (MaxPooling("p", 3, stride=2), (6, 7, 2), 2),
    "max 3/2 padded floor": (MaxPooling("p", 3, stride=2, padding=1, mode="floor"), (6, 7, 2), 1),
    "average 3/2 ceil": (AveragePooling("p", 3, stride=2), (6, 7, 2), 2),
    "global average": (GlobalAverage("p"), (3, 5, 4), 2),
    "relu": (ReLU("r"), (3, 4, 2), 2),
    "sigmoid": (Sigmoid("s"), (3, 4, 2), 2),
    "lrn 5": (LRN("n", 5, alpha=0.7, beta=0.75, k=2.0), (2, 3, 8), 2),
    "dropout": (Dropout("d", 0.4), (4, 3, 5), 2),
    "batch norm": (BatchNorm("b", gamma=some), (3, 2, 4), 3),
    "batch norm, one image": (BatchNorm("b", gamma=some), (3, 4, 2), 1),
    "batch norm of vectors": (BatchNorm("b", gamma=some), (6,), 5),
    "flatten": (Flatten("f"), (2, 3, 4), 2),
    "subsampling": (Subsampling("s", 5), (5, 4, 2), 2),
    "subsampling by 3x1": (Subsampling("s", 4, stride=(3, 1)), (7, 2, 3), 1),
    "concat": (Concat("m", BRANCHES), (4, 3, 2), 2),
    "concat of vectors": (Concat("m", [[Linear("a", 3)], [Linear("b", 2), ReLU("relu")]]), (4,), 3),
    "residual, identity": (Residual("r", [*STRAIGHT, BatchNorm("bn"), ReLU("relu")]), (4, 3, 3), 2),
    "residual, projection": (Residual("r", HALVING, [Convolution("p", 4, 1, stride=2, bias=None)]), (5, 4, 2), 2),
    "concat within residual": (
        Residual("r", [Concat("m", [[Convolution("a", 1, 1)], [Convolution("b", 2, 3, padding=1)]])]),
        (3, 3, 3),
        2,
    ),
}


def spread(random, shape):
    """Return distinct numbers of both signs, all differences > EPS, so that ReLU and max are smooth."""
    n = int(np.prod(shape))
    return ((random.permutation(n) - n // 2 + 0.3) * (4.0 / n)).reshape(shape)


def differences(function, array):
    """Return central differences of a scalar function by ``array``, which is changed in place."""
    slope = np.empty(array.shape)
    for i in np.ndindex(array.shape):
        before = array[i]
        array[i] = before + EPS
        above = function()
        array[i] = before - EPS
        slope[i] = (above - function()) / (2 * EPS)
        array[i] = before
    return slope


def check_derivative(tried, x, dy):
    y, dx, gradients = tried.forward(x), tried.backward(dy), tried.gradients

    def value():
        return float(np.sum(tried.forward(x) * dy))

    assert np.count_nonzero(dx)
    np.testing.assert_allclose(dx, differences(value, x), rtol=1e-6, atol=1e-7)
    slope = tried.views(differences(value, tried.replica.parameters))
    assert gradients.keys() == slope.keys()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, slope[name], rtol=1e-6, atol=1e-7, err_msg=name)
    return y, dx, gradients


@pytest.mark.parametrize("case", CASES)
def test_backward_is_the_derivative_of_forward(case):
    """In numpy; the other backends give the same, unless they draw other numbers."""
    layer, shape, n = CASES[case]
    random = np.random.default_rng(11)
    first, *others = (Probe(layer, shape, kernels_of(name)) for name in BACKENDS)
    x = spread(random, (n, *shape))
    dy = random.standard_normal(first.forward(x).shape)
    y, dx, gradients = check_derivative(first, x, dy)
    for other in others:
        if case == "dropout":
            check_derivative(other, x, dy)
            continue
        np.testing.assert_allclose(other.forward(x), y, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(other.backward(dy), dx, rtol=1e-9, atol=1e-11)
        for name, gradient in other.gradients.items():
            np.testing.assert_allclose(gradient, gradients[name], rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_float32_agrees_with_float64(case, probe):
    layer, shape, n = CASES[case]
    random = np.random.default_rng(12)
    x = spread(random, (n, *shape))
    single, double = probe(layer, shape, dtype="float32"), probe(layer, shape)
    y = double.forward(x)
    np.testing.assert_allclose(single.forward(x), y, rtol=1e-4, atol=1e-5)
    dy = random.standard_normal(y.shape)
    np.testing.assert_allclose(single.backward(dy), double.backward(dy), rtol=1e-3, atol=1e-4)
    for name, gradient in double.gradients.items():
        assert single.gradients[name].dtype == np.float32
        np.testing.assert_allclose(single.gradients[name], gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_first_stage_has_the_same_gradients_and_returns_none(case, probe, kernels):
    layer, shape, n = CASES[case]
    random = np.random.default_rng(13)
    x = random.standard_normal((n, *shape))
    second = probe(layer, shape)
    dy = random.standard_normal(second.forward(x).shape)
    second.backward(dy)

    first = Replica([layer], shape, backend=kernels, dtype="float64", seed=3)
    first.reseed(7)
    first.stages[0].forward(kernels.asarray(x))
    assert first.stages[0].backward(kernels.asarray(dy)) is None
    np.testing.assert_array_equal(kernels.to_host(first.gradients), kernels.to_host(second.replica.gradients))


@pytest.mark.parametrize(
    "case", [c for c in CASES if "batch norm" not in c and "residual" not in c and c != "dropout"]
)
def test_each_image_is_independent_of_its_batch(case, probe):
    layer, shape, _ = CASES[case]
    x = np.random.default_rng(15).standard_normal((5, *shape))
    tried = probe(layer, shape)
    together = tried.forward(x)
    dy = np.random.default_rng(16).standard_normal(together.shape)
    dx, gradients = tried.backward(dy), tried.gradients
    summed = {name: np.zeros_like(gradient) for name, gradient in gradients.items()}
    for images in (slice(0, 3), slice(3, 3), slice(3, 5)):
        np.testing.assert_allclose(tried.forward(x[images]), together[images], rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(tried.backward(dy[images]), dx[images], rtol=1e-12, atol=1e-13)
        for name, gradient in tried.gradients.items():
            summed[name] += gradient
    for name, gradient in gradients.items():
        np.testing.assert_allclose(summed[name], gradient, rtol=1e-11, atol=1e-12)


def test_whole_network_along_random_directions(zoo, batch, kernels):
    images, labels = batch(6)
    replica = Replica(zoo(), images.shape[1:], backend=kernels, dtype="float64", seed=1)
    assert not gradient_errors(replica, images, labels, [tensor.span for tensor in replica.tensors])
