"""Models: contract, sizes, initial weights, and parameters and volumes as published."""

import inspect
import math

import numpy as np
import pytest

from hpcdl import registry
from hpcdl.commands.parts import contracts
from hpcdl.commands.parts.contracts import check_model
from hpcdl.models.layers import OFFERS as SIZED
from hpcdl.nn.backend import backend
from hpcdl.nn.composite import Auxiliary, Concat, Residual
from hpcdl.nn.layers import BatchNorm, Convolution, Flatten, GlobalAverage, Linear, LocallyConnected, ReLU
from hpcdl.nn.replica import Replica
from hpcdl.nn.volumes import volumes

SHAPES = {"lenet5": (3, 6, 2), "cifar_quick": (12, 15, 2), "nin_cifar": (6, 9, 2), "resnet20": (4, 7, 2)}
SHAPES |= {"locally_connected_vision": (12, 15, 2), "inception_small": (6, 9, 2)}


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_of_the_package_keeps_its_contract(name):
    checks = [*check_model(name, SHAPES[name])]
    assert len(checks) == 3
    assert [check for check in checks if check.verdict != "ok"] == []


def test_a_table_of_sizes_has_nothing_to_check():
    with pytest.raises(ValueError, match="has sizes alone"):
        next(check_model("bert_large"))


class Halved(ReLU):
    """Returns half of the gradient."""

    def bind(self, shape, site):
        bound = super().bind(shape, site)
        backward = bound.backward
        bound.backward = lambda dy, needs_dx: backward(dy, needs_dx) / 2
        return bound


class Longer(ReLU):
    """States one more output than it has."""

    def output(self, shape):
        return (*shape[:-1], shape[-1] + 1)


@pytest.mark.parametrize(
    ("layers", "wrong"),
    [
        (lambda classes: [Flatten("flatten"), Linear("fc", classes + 1)], "one output per class"),
        (lambda n: [Linear("fc", 5), Halved("r"), Linear("fc2", n)], "gradients as differences of the loss"),
        (lambda classes: [Longer("r"), Linear("fc", classes)], "sizes alone as with arithmetic"),
    ],
)
def test_a_model_that_breaks_its_contract_is_found(layers, wrong, monkeypatch):
    monkeypatch.setattr(registry, "find", lambda *_: lambda shape=(7,), classes=10: layers(classes))
    assert wrong in [check.subject for check in contracts.check_model("model") if check.verdict != "ok"]


@pytest.mark.parametrize("name", sorted({*registry.names("models")} - {*SIZED}))
def test_any_number_of_classes_and_the_smallest_images(name):
    """One pixel more than the size that is refused below, and three more in width."""
    smallest = {"alexnet": 55, "googlenet": 79, "nin": 55, "overfeat": 59, "vgg11": 17, "vgg16": 17, "vgg19": 17}
    smallest |= {model: shape[0] for model, shape in SHAPES.items() if model != "resnet20"}
    side = smallest.get(name, 1)
    for classes in (3, 10):
        shape = (side, side + 3, 2)
        for layer in (layers := registry.find("models", name)(shape, classes)):
            layer.declare(shape)
            shape = layer.output(shape)
        assert shape == (classes,)
        assert len({layer.name for layer in layers}) == len(layers)


def test_initial_weights_of_caffe_models_and_resnet_50():
    """Biases and gammas, and deviations or bounds of some weights."""
    for name, shape, weights, vector in [
        ("alexnet", (55, 55, 3), 0.01, lambda layer: layer in {"conv2", "conv4", "conv5", "fc6", "fc7"}),
        ("resnet50", (32, 32, 3), None, lambda layer: "bn" in layer and "expand" not in layer),
        ("inception_small", (32, 32, 1), None, lambda layer: 0 if "classifier" in layer else 0.2),
        ("googlenet", (79, 79, 3), None, lambda layer: 0 if "classifier" in layer else 0.2),
    ]:
        replica = Replica(registry.find("models", name)(shape, 10), shape, backend=backend("numpy"), seed=1)
        values = {tensor.name: replica.parameters[tensor.span] for tensor in replica.tensors}
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


def weigh(name, batch=1, shape=None, **settings):
    model = registry.find("models", name)
    natural, classes = (p.default for p in list(inspect.signature(model).parameters.values())[:2])
    return volumes(model(shape or natural, classes, **settings), shape or natural, batch)


def test_parameters_and_arithmetic():
    for name, settings, parameters, multiply_adds in [
        ("alexnet", {}, 60_965_224, 0.724e9),
        ("alexnet", {"groups": 1}, 62_378_344, 1.135e9),
        ("googlenet", {}, 13_378_280, 1.58e9),
        ("googlenet", {"auxiliary": False}, 6_998_552, 1.58e9),
        ("lenet5", {"shape": (8, 8, 1)}, 131_080, None),
        ("nin", {}, 7_595_176, 1.100e9),
        ("overfeat", {}, 145_920_872, 2.80e9),
        ("resnet20", {}, 269_722, 40.6e6),
        ("resnet20", {"option": "B"}, 272_474, None),
        ("resnet50", {}, 25_557_032, 4.09e9),
        ("resnet56", {}, 853_018, 125.5e6),
        ("resnet56", {"option": "B"}, 855_770, None),
        ("vgg11", {}, 132_863_336, 7.6e9),
        ("vgg16", {}, 138_357_544, 15.5e9),
        ("vgg19", {}, 143_667_240, 19.6e9),
        ("vit_b16", {}, 86_567_656, 17.56e9),
    ]:
        found = weigh(name, **settings)
        assert found.parameters == parameters
        if multiply_adds is not None:
            assert found.multiply_adds_per_image == pytest.approx(multiply_adds, rel=0.002)


TABLE_1 = {
    "3a": (16, 64, 96, 128, 16, 32, 32),
    "3b": (16, 128, 128, 192, 32, 96, 64),
    "4a": (8, 192, 96, 208, 16, 48, 64),
    "4b": (8, 160, 112, 224, 24, 64, 64),
}
"""Side of the image in the small network, and GoogLeNet's filters: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool proj."""


@pytest.mark.parametrize(("channels", "classes"), [(3, 10), (1, 10), (3, 100)])
def test_small_googlenet_has_half_of_the_filters_of_table_1(channels, classes):
    convolutions, inputs = [(32, 3, channels, 32), (16, 1, 32, 32), (16, 3, 32, 96)], 96
    for side, *filters in TABLE_1.values():
        direct, reduce3, filters3, reduce5, filters5, projected = (number // 2 for number in filters)
        convolutions += [(side, 1, inputs, number) for number in (direct, reduce3, reduce5, projected)]
        convolutions += [(side, 3, reduce3, filters3), (side, 5, reduce5, filters5)]
        inputs = direct + filters3 + filters5 + projected
    parameters, multiply_adds = (inputs + 1) * classes, inputs * classes
    for side, kernel, read, filters in convolutions:
        parameters += (kernel**2 * read + 1) * filters
        multiply_adds += side**2 * kernel**2 * read * filters
    shape = (32, 32, channels)
    found = volumes(registry.find("models", "inception_small")(shape, classes), shape, 1)
    assert (found.parameters, found.multiply_adds_per_image) == (parameters, multiply_adds)


def test_firecaffes_table_of_volumes():
    """Images of 224x224, a batch of 1024. The paper prints two or three digits, some cut and not rounded."""
    for name, settings, data, weights, flop in [
        ("nin", {}, 5800e6, 30e6, 6.7e12),
        ("alexnet", {"groups": 1}, 1680e6, 249e6, 7.0e12),
        ("googlenet", {}, 19_100e6, 54e6, 9.7e12),
        ("vgg19", {}, 42_700e6, 575e6, 120e12),
    ]:
        found = weigh(name, 1024, (224, 224, 3), **settings)
        assert found.data_bytes == pytest.approx(data, rel=0.0025)
        assert found.weight_bytes == pytest.approx(weights, rel=0.0125)
        assert found.forward_backward_flop == pytest.approx(flop, rel=0.01)


def test_volumes_by_hand():
    """All kinds of layers: branch, residual block, auxiliary classifier, locally connected."""
    layers = [
        Convolution("conv", 4, 3, stride=2, padding=1, groups=2, relu=True),  # to (4, 3, 4)
        Concat("mixed", [[Convolution("a", 3, 1)], [Convolution("b", 2, 1), Convolution("c", 5, 3, padding=1)]]),
        Residual("block", [Convolution("d", 8, 3, padding=1, bias=None), BatchNorm("bn")], relu=True),
        Auxiliary("aside", [GlobalAverage("pool"), Linear("fc", 10)]),
        LocallyConnected("local", 3, 2),  # to (3, 2, 3)
        Flatten("flatten"),
        Linear("fc", 10),
    ]
    found = volumes(layers, (8, 6, 2), 5)
    weights = {
        "conv": 4 * 9 * 1,
        "a": 3 * 4,
        "b": 2 * 4,
        "c": 5 * 9 * 2,
        "d": 8 * 9 * 8,
        "aside": 10 * 8,
        "local": 3 * 2 * 3 * 4 * 8,
        "fc": 10 * 18,
    }
    biases = 4 + 3 + 2 + 5 + 10 + 18 + 10
    assert found.parameters == sum(weights.values()) + biases + 2 * 8
    assert found.weight_bytes == 4 * sum(weights.values())
    read = 8 * 6 * 2 + 12 * 4 + 12 * 4 + 12 * 2 + 12 * 8 + 12 * 8 + 18
    assert found.data_bytes == 5 * 4 * read
    tied = sum(weights[name] for name in "abcd") + weights["conv"]
    assert found.multiply_adds_per_image == 12 * tied + weights["local"] + weights["fc"]
    assert found.forward_backward_flop == 6 * 5 * found.multiply_adds_per_image
    written = 12 * 4 + 12 * (3 + 2 + 5) + 12 * 8 + 12 * (8 + 8) + (8 + 10) + 18 + 10
    assert found.activation_bytes == 5 * 4 * written


def test_every_docstring_states_the_number_of_parameters():
    for name in {*registry.names("models")} - {"layers"}:
        docstring = inspect.getdoc(registry.find("models", name))
        assert f"{weigh(name).parameters:,}" in docstring, name


def test_variables_of_models_are_weights_and_biases():
    """A layer with another name for its weights would be missing in |W|."""
    for name in {*registry.names("models")} - {*SIZED}:
        model = registry.find("models", name)
        shape, named = inspect.signature(model).parameters["shape"].default, 0
        for layer in model():
            named += sum(math.prod(v.shape) for v in layer.declare(shape) if v.decay)
            shape = layer.output(shape)
        assert 4 * named == weigh(name).weight_bytes, name
