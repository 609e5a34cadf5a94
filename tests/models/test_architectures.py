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
    smallest = {"alexnet": 55, "googlenet": 79, "nin": 55, "overfeat": 59, "vgg11": 17, "vgg16": 17, "vgg19": 17}
    smallest |= {"locally_connected_vision": 12, "cifar_quick": 12, "nin_cifar": 6, "lenet5": 3}
    side = smallest.get(name, 1)
    shape = (side, side + 3, 2)
    assert list(outputs(name, shape).values())[-1] == (10,)
    for layer in (layers := built(name, shape, classes=3)):
        layer.declare(shape)
        shape = layer.output(shape)
    assert shape == (3,)
    assert len({layer.name for layer in layers}) == len(layers)


def started(name, shape, **settings):
    replica = Replica(built(name, shape, **settings), shape, backend=backend("numpy"), seed=1)
    return {t.name: replica.parameters[t.span].reshape(t.shape) for t in replica.tensors}


def test_initial_weights_of_caffe_models_and_resnet_50():
    """Biases and gammas, and deviations or bounds of some weights."""
    for name, shape, weights, vector in [
        ("alexnet", (55, 55, 3), 0.01, lambda layer: layer in {"conv2", "conv4", "conv5", "fc6", "fc7"}),
        ("resnet50", (32, 32, 3), None, lambda layer: "bn" in layer and "expand" not in layer),
        ("googlenet", (79, 79, 3), None, lambda layer: 0 if "classifier" in layer else 0.2),
    ]:
        values = started(name, shape)
        for tensor, value in values.items():
            layer, _, kind = tensor.rpartition(".")
            if kind == "weight":
                assert weights is None or value.std() == pytest.approx(weights, rel=0.05), tensor
            elif kind != "beta":
                assert np.all(value == np.float32(vector(layer))), tensor
        if name == "resnet50":
            assert sum(tensor.endswith("gamma") for tensor in values) == 53
            assert not any(tensor.endswith("bias") for tensor in values if not tensor.startswith("fc"))
            assert values["fc.weight"].std() == pytest.approx(0.01, rel=0.05)
            assert values["res4b.3x3.weight"].std() == pytest.approx(np.sqrt(2 / (9 * 256)), rel=0.05)
    bound = np.sqrt(3 / (9 * 128))
    assert 0.99 * bound < np.abs(values["inception_3b.3x3.weight"]).max() <= bound
