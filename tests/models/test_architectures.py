"""Sizes within the networks, other image sizes, too small images, and initial weights."""

import numpy as np
import pytest

from hpcdl import registry
from hpcdl.models.layers import OFFERS as SIZED
from hpcdl.nn.backend import backend
from hpcdl.nn.replica import Replica


def built(name, shape, classes=10, **settings):
    return registry.find("models", name)(shape, classes, **settings)


def outputs(name, shape, **settings):
    sizes = {}
    for layer in built(name, shape, **settings):
        shape = layer.output(shape)
        sizes[layer.name] = shape
    return sizes


@pytest.mark.parametrize("name", sorted({*registry.names("models")} - {*SIZED}))
def test_any_number_of_classes_and_the_smallest_images(name):
    """One pixel more than the size that is refused below, and three more in width."""
    smallest = {
        "alexnet": 55,
        "googlenet": 79,
        "nin": 55,
        "vgg11": 17,
        "vgg16": 17,
        "vgg19": 17,
        "locally_connected_vision": 12,
        "cifar_quick": 12,
        "nin_cifar": 6,
        "lenet5": 3,
    }.get(name, 1)
    shape = (smallest, smallest + 3, 2)
    assert list(outputs(name, shape).values())[-1] == (10,)
    for layer in (layers := built(name, shape, classes=3)):
        layer.declare(shape)
        shape = layer.output(shape)
    assert shape == (3,)
    assert len({layer.name for layer in layers}) == len(layers)


def started(name, shape, **settings):
    replica = Replica(built(name, shape, **settings), shape, backend=backend("numpy"), seed=1)
    return {t.name: replica.parameters[t.span].reshape(t.shape) for t in replica.tensors}


def test_initial_weights_of_alexnet():
    values = started("alexnet", (55, 55, 3))
    ones = {"conv2", "conv4", "conv5", "fc6", "fc7"}
    for name, value in values.items():
        layer, _, kind = name.partition(".")
        if kind == "weight":
            assert value.std() == pytest.approx(0.01, rel=0.05), name
        else:
            assert np.all(value == (1 if layer in ones else 0)), name


def test_initial_weights_of_resnet_50():
    values = started("resnet50", (32, 32, 3))
    gammas = {name: value for name, value in values.items() if name.endswith("gamma")}
    assert len(gammas) == 53
    for name, value in gammas.items():
        assert np.all(value == (0 if "expand" in name else 1)), name
    assert values["fc.weight"].std() == pytest.approx(0.01, rel=0.05)
    assert values["res4b.3x3.weight"].std() == pytest.approx(np.sqrt(2 / (9 * 256)), rel=0.05)
    assert not any(name.endswith("bias") for name in values if not name.startswith("fc"))


def test_initial_weights_of_googlenet():
    values = started("googlenet", (79, 79, 3))
    for name, value in values.items():
        if name.endswith("bias"):
            assert np.all(value == np.float32(0 if "classifier" in name else 0.2)), name
    bound = np.sqrt(3 / (9 * 128))
    assert 0.99 * bound < np.abs(values["inception_3b.3x3.weight"]).max() <= bound
