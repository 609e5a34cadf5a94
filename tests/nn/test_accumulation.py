"""Parts of a network, and several bindings of the same layers."""

from itertools import pairwise

import numpy as np
import pytest

from hpcdl.nn.backend import backend
from hpcdl.nn.layers.affine import Convolution, Linear
from hpcdl.nn.layers.composite import Auxiliary
from hpcdl.nn.layers.elementwise import Dropout, Flatten, ReLU
from hpcdl.nn.layers.pooling import MaxPooling
from hpcdl.nn.replica import Replica

SHAPE, CLASSES, IMAGES = (6, 6, 2), 3, 7


def network():
    return [
        Convolution("conv", 4, 3, relu=True),
        Dropout("drop1", 0.3),
        Auxiliary("aux", [Flatten("flat"), Linear("fc", CLASSES)]),
        MaxPooling("pool", 2),
        Flatten("flat"),
        Dropout("drop2"),
        Linear("fc1", 5),
        ReLU("relu"),
        Linear("fc2", CLASSES),
    ]


def made(part=slice(None), kernels="numpy"):
    replica = Replica(network(), SHAPE, backend=backend(kernels), dtype="float64", seed=4, part=part)
    replica.reseed(1, 2)
    return replica


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(IMAGES, *SHAPE)), rng.integers(0, CLASSES, IMAGES)


def test_parts_together_are_the_network():
    for cuts in [(0, 9), (0, 1, 9), (0, 3, 6, 9), tuple(range(10))]:
        whole = made()
        parts = [made(slice(begin, end)) for begin, end in pairwise(cuts)]
        assert np.array_equal(np.concatenate([part.parameters for part in parts]), whole.parameters)
        assert [one.name for part in parts for one in part.tensors] == [one.name for one in whole.tensors]
        x = np.random.default_rng(0).normal(size=(2, *SHAPE))
        expected = whole.predict(x)
        for part in parts:
            assert x.shape[1:] == part.shape
            x = part.predict(x)
        assert np.array_equal(x, expected)
        assert [part.is_first for part in parts] == [True] + [False] * (len(parts) - 1)
        assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("bounds", [(0, 7), (0, 3, 7), (0, 1, 2, 4, 7)])
@pytest.mark.parametrize("order", [1, -1])
def test_microbatches_add_up_to_the_batch(data, kernels, bounds, order, step):
    """All forwards precede all backwards; dropout draws one mask for the batch, whatever its division."""
    images, labels = data
    whole, split = made(kernels=kernels), made(kernels=kernels)
    expected, _ = step(whole, images, labels, 1 / IMAGES)
    parts = [slice(*pair) for pair in pairwise(bounds)]
    bound = split.bindings(len(parts))
    outputs = []
    for part, binding in zip(parts, bound, strict=True):
        x = images[part]
        for stage in binding:
            x = stage.forward(x)
        outputs.append(x)
    split.gradients[:] = np.nan
    loss, first = 0.0, True
    for part, binding, y in list(zip(parts, bound, outputs, strict=True))[::order]:
        summed, _, dy = split.loss(y, labels[part], 1 / IMAGES)
        heads = [head for stage in binding for head in stage.heads]
        for head in heads:
            head.aim(labels[part], 1 / IMAGES)
        for stage in reversed(binding):
            dy = stage.backward(dy, first=first)
        loss += summed + sum(head.value for head in heads)
        first = False
    np.testing.assert_allclose(loss, expected, rtol=1e-13)
    np.testing.assert_allclose(split.gradients, whole.gradients, rtol=0, atol=1e-14)


def test_bindings_share_the_gradient_of_the_longest_layer():
    replica = made()
    assert not replica.layer_gradient.size
    replica.bindings(3)
    assert replica.layer_gradient.size == max(stage.span.stop - stage.span.start for stage in replica.stages)
