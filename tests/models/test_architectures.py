"""Sizes within the networks, other image sizes, too small images, and initial weights."""

import numpy as np
import pytest

from hpcdl import registry
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


def test_sizes_in_caffes_networks():
    sizes = outputs("lenet5", (28, 28, 1))
    assert [sizes[name][:2] for name in ("conv1", "pool1", "conv2", "pool2")] == [
        (24, 24),
        (12, 12),
        (8, 8),
        (4, 4),
    ]
    sizes = outputs("cifar_quick", (32, 32, 3))
    assert [sizes[f"pool{i}"] for i in (1, 2, 3)] == [(16, 16, 32), (8, 8, 32), (4, 4, 64)]
    for side, first in ((227, 55), (224, 54)):
        sizes = outputs("alexnet", (side, side, 3))
        assert [sizes[name][0] for name in ("conv1", "pool1", "pool2", "pool5")] == [first, 27, 13, 6]
        assert sizes["flatten"] == (9216,)
    sizes = outputs("nin", (224, 224, 3))
    assert [sizes[f"pool{i}"] for i in (1, 2, 3)] == [(27, 27, 96), (13, 13, 256), (6, 6, 384)]
    sizes = outputs("nin_cifar", (32, 32, 3))
    assert [sizes[f"pool{i}"] for i in (1, 2)] == [(16, 16, 96), (8, 8, 192)]


def test_sizes_in_googlenet():
    """Table 1 of the paper."""
    sizes = outputs("googlenet", (224, 224, 3))
    table = {
        "conv1": (112, 112, 64),
        "pool1": (56, 56, 64),
        "conv2": (56, 56, 192),
        "pool2": (28, 28, 192),
        "inception_3a": (28, 28, 256),
        "inception_3b": (28, 28, 480),
        "pool3": (14, 14, 480),
        "inception_4a": (14, 14, 512),
        "inception_4b": (14, 14, 512),
        "inception_4c": (14, 14, 512),
        "inception_4d": (14, 14, 528),
        "inception_4e": (14, 14, 832),
        "pool4": (7, 7, 832),
        "inception_5a": (7, 7, 832),
        "inception_5b": (7, 7, 1024),
        "pool5": (1024,),
    }
    assert {name: sizes[name] for name in table} == table
    order = list(sizes)
    assert order.index("loss1") == order.index("inception_4a") + 1
    assert order.index("loss2") == order.index("inception_4d") + 1
    assert {"loss1", "loss2"}.isdisjoint(outputs("googlenet", (224, 224, 3), auxiliary=False))


def test_sizes_in_residual_networks():
    sizes = outputs("resnet50", (224, 224, 3))
    table = {"conv1": 112, "pool1": 56, "res2c": 56, "res3d": 28, "res4f": 14, "res5c": 7}
    assert {name: sizes[name][0] for name in table} == table
    assert [sizes[f"res{i}a"][2] for i in (2, 3, 4, 5)] == [256, 512, 1024, 2048]
    for name, blocks in (("resnet20", 3), ("resnet56", 9)):
        sizes = outputs(name, (32, 32, 3))
        assert [sizes[f"block{stage}_{blocks}"] for stage in (1, 2, 3)] == [(32, 32, 16), (16, 16, 32), (8, 8, 64)]


@pytest.mark.parametrize("name", registry.names("models"))
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


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("lenet5", (2, 2, 1), r"^pool2: kernel 2x2 is larger than the padded image 1x1$"),
        ("cifar_quick", (11, 11, 3), r"^pool3: kernel 3x3 is larger than the padded image 2x2$"),
        ("nin_cifar", (5, 5, 3), r"^pool2: kernel 3x3 is larger than the padded image 2x2$"),
        ("nin", (54, 54, 3), r"^pool3: kernel 3x3 is larger than the padded image 2x2$"),
        ("alexnet", (54, 54, 3), r"^pool5: kernel 3x3 is larger than the padded image 2x2$"),
        ("googlenet", (78, 78, 3), r"^loss1\.ave_pool: kernel 5x5 is larger than the padded image 4x4$"),
        ("vgg19", (16, 16, 3), r"^pool5: kernel 2x2 is larger than the padded image 1x1$"),
        ("locally_connected_vision", (11, 11, 3), r"^pool3: kernel 2x2 is larger than the padded image 1x1$"),
        ("resnet20", (440,), r"^conv1: needs an image \(height, width, channels\), got shape \(440,\)$"),
        ("alexnet", (227, 227), r"^conv1: needs an image"),
    ],
)
def test_too_small_images_are_refused_by_the_layer_without_output(name, shape, message):
    with pytest.raises(ValueError, match=message) as caught:
        outputs(name, shape)
    assert "\n" not in str(caught.value)


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
