"""Fused ReLU and fused shortcut give the same bits as separate layers; divergence remains visible."""

import numpy as np
import pytest

from hpcdl.nn.composite import Residual
from hpcdl.nn.layer import gaussian
from hpcdl.nn.layers import BatchNorm, Convolution, Linear, LocallyConnected, MaxPooling, ReLU
from hpcdl.nn.replica import Replica

some = gaussian(1.0)

PAIRS = {
    "3x3": lambda relu: Convolution("c", 5, 3, padding=1, bias=some, relu=relu),
    "3x3 of 16 channels": lambda relu: Convolution("c", 24, 3, padding=1, bias=some, relu=relu),
    "3x3/2": lambda relu: Convolution("c", 5, 3, stride=2, padding=1, relu=relu),
    "1x1": lambda relu: Convolution("c", 5, 1, bias=None, relu=relu),
    "grouped 5x5": lambda relu: Convolution("c", 8, 5, padding=2, groups=2, bias=some, relu=relu),
    "local 2x4": lambda relu: LocallyConnected(
        "c", 3, (2, 4), stride=(1, 3), padding=(1, 2), bias=some, relu=relu
    ),
    "batch norm": lambda relu: BatchNorm("c", gamma=some, relu=relu),
    "residual that ends in a convolution": lambda relu: Residual(
        "c", [Convolution("a", 16, 1, relu=True), Convolution("b", 16, 3, padding=1, bias=some)], relu=relu
    ),
    "residual that ends in batch norm": lambda relu: Residual(
        "c", [Convolution("a", 16, 3, padding=1), BatchNorm("bn", gamma=some)], relu=relu
    ),
    "residual with a projection": lambda relu: Residual(
        "c",
        [Convolution("a", 6, 3, stride=2, padding=1), BatchNorm("bn", gamma=some)],
        [Convolution("p", 6, 1, stride=2), BatchNorm("pbn", gamma=some)],
        relu=relu,
    ),
}

SHAPE = (7, 6, 16)


TRAINED = [(0, True, "float32"), (1, True, "float64"), (3, True, "float32")]


@pytest.mark.parametrize(("images", "train", "dtype"), [*TRAINED, (1, False, "float32"), (3, False, "float64")])
@pytest.mark.parametrize("name", PAIRS)
def test_images(name, images, train, dtype, kernels):
    compare(PAIRS[name], SHAPE, images, train, kernels, dtype)


def test_vectors(kernels):
    for images in (0, 1, 5):
        compare(lambda relu: Linear("c", 9, bias=some, relu=relu), (6,), images, True, kernels, "float64")
        compare(PAIRS["batch norm"], (6,), images, True, kernels, "float64")


def compare(layer, shape, images, train, kernels, dtype):
    x = np.random.default_rng(1).standard_normal((images, *shape)).astype(dtype)
    tolerance = {"float64": 1e-10, "float32": 2e-4}[dtype]
    results = []
    for network in ([ReLU("first"), layer(False), ReLU("last")], [ReLU("first"), layer(True)]):
        replica = Replica(network, shape, backend=kernels, dtype=dtype, seed=5)
        y = replica.backend.asarray(x)
        for stage in replica.stages:
            y = stage.forward(y, train=train)
        found = [replica.backend.to_host(y).copy(), replica.backend.to_host(replica.state).copy()]
        if train:
            dy = replica.backend.asarray(np.random.default_rng(2).standard_normal(y.shape).astype(dtype))
            for stage in reversed(replica.stages[1:]):
                dy = stage.backward(dy)
            found += [replica.backend.to_host(dy).copy(), replica.backend.to_host(replica.gradients).copy()]
        results.append(found)
    assert not x.size or (results[0][0] == 0).any()
    for apart, fused in zip(*results, strict=True):
        scale = np.abs(apart).max(initial=1)
        np.testing.assert_allclose(fused / scale, apart / scale, atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", PAIRS)
def test_relu_propagates_nan(name, kernels):
    replica = Replica([PAIRS[name](True)], SHAPE, backend=kernels)
    x = np.ones((2, *SHAPE), np.float32)
    x[1, 3, 2] = np.nan
    y = replica.backend.to_host(replica.stages[0].forward(replica.backend.asarray(x)))
    assert np.isnan(y).any()


def test_max_pooling_propagates_nan(kernels):
    """Of a window whose first, second, third or fourth pixel is none, and only there."""
    stage = Replica([MaxPooling("p", 2)], (2, 4, 1), backend=kernels).stages[0]
    for i in range(4):
        x = np.arange(8, dtype=np.float32).reshape(1, 2, 4, 1)
        x[0, i // 2, i % 2] = np.nan
        y = kernels.to_host(stage.forward(kernels.asarray(x)))
        assert np.isnan(y).ravel().tolist() == [True, False]
