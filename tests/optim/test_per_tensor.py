"""Weight decay excludes biases and batch normalisation; models have factors on the learning rate."""

import inspect
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from hpcdl.nn.backend import backend
from hpcdl.nn.replica import Replica
from hpcdl.optim.adaptive import Adagrad, Adam, AdamW, RMSProp
from hpcdl.optim.parts import per_tensor
from hpcdl.optim.parts.per_tensor import Multipliers
from hpcdl.optim.sgd import SGD, Nesterov
from hpcdl.registry import find, names

RULES = {
    "sgd": SGD,
    "momentum": lambda **decay: SGD(momentum=0.9, **decay),
    "nesterov": Nesterov,
    "adagrad": Adagrad,
    "rmsprop": RMSProp,
    "adam": Adam,
    "adamw": AdamW,
}
each_rule = pytest.mark.parametrize("make", RULES.values(), ids=RULES)

SIZES = [(40, True, 1.0), (5, False, 2.0), (1, True, 1.0), (30, True, 0.1), (7, False, 1.0), (0, False, 2.0)]
"""Entries of the tensors of a vector, whether they decay, and the multiple of their rate."""
STEPS = 6
DECAY = 0.1


def tensors():
    offset = 0
    for size, decay, rate in SIZES:
        yield SimpleNamespace(span=slice(offset, offset + size), decay=decay, rate=rate)
        offset += size


N = sum(size for size, _, _ in SIZES)
START = np.random.default_rng(1).standard_normal(N)
GRADIENTS = np.random.default_rng(2).standard_normal((STEPS, N))


def trained(optimizer, span=slice(0, N)):
    w = START[span].copy()
    for step, gradient in enumerate(GRADIENTS):
        optimizer.update(w, gradient[span], 0.1 / (1 + step))
    return w


def each_tensor_by_itself(make):
    """Update with one optimizer per tensor, with its own decay and rate."""
    w = START.copy()
    for tensor in tensors():
        optimizer = make(weight_decay=DECAY if tensor.decay else 0.0)
        for step, gradient in enumerate(GRADIENTS):
            optimizer.update(w[tensor.span], gradient[tensor.span], tensor.rate * 0.1 / (1 + step))
    return w


@each_rule
@pytest.mark.parametrize("piece_bytes", [8, 24, 56, 808, 1 << 17])
def test_the_whole_vector_is_updated_as_tensor_by_tensor(make, piece_bytes, monkeypatch):
    monkeypatch.setattr(per_tensor, "BLOCK_BYTES", piece_bytes)
    optimizer = make(weight_decay=DECAY)
    optimizer.multipliers = Multipliers.of(tensors())
    np.testing.assert_allclose(trained(optimizer), each_tensor_by_itself(make), rtol=1e-12)


@each_rule
def test_a_part_of_the_vector_is_updated_as_in_the_whole(make):
    """For any part: a server's shard, or a layer."""
    optimizer = make(weight_decay=DECAY)
    optimizer.multipliers = whole = Multipliers.of(tensors())
    expected = trained(optimizer)
    for begin, end in itertools.pairwise([0, 0, 3, 42, 43, 44, 45, 46, 80, N]):
        optimizer = make(weight_decay=DECAY)
        optimizer.multipliers = whole.part(slice(begin, end))
        np.testing.assert_array_equal(trained(optimizer, slice(begin, end)), expected[begin:end])


def test_without_a_gradient_biases_and_batch_normalisation_stay_and_weights_shrink():
    data = find("datasets", "synthetic")(shape=[8, 8, 3], classes=4)
    network = find("models", "resnet20")(data.shape, data.classes)
    replica = Replica(network, data.shape, backend=backend("numpy"), dtype="float64")
    replica.parameters += 1
    before, optimizer = replica.parameters.copy(), SGD(weight_decay=0.5)
    optimizer.multipliers = Multipliers.of(replica.tensors)
    optimizer.update(replica.parameters, replica.gradients, 0.1)
    for tensor in replica.tensors:
        is_weight = tensor.name.endswith("weight")
        factor = 0.95 if is_weight else 1.0
        assert tensor.decay == is_weight, tensor.name
        np.testing.assert_allclose(replica.parameters[tensor.span], factor * before[tensor.span], rtol=1e-15)


CAFFES = {"alexnet", "cifar_quick", "googlenet", "lenet5", "nin", "nin_cifar"}
"""Models whose published training file gives biases twice the learning rate."""


def test_only_caffes_models_have_factors_on_the_rate():
    for name in {*names("models")} - {"layers"}:
        model, found = find("models", name), {}
        shape = inspect.signature(model).parameters["shape"].default
        for layer in model():
            found |= {f"{layer.name}.{one.name}": one.rate for one in layer.declare(shape) if one.trained}
            shape = layer.output(shape)
        tenth = {"cccp6.weight", "cccp6.bias"} if name == "nin_cifar" else set()
        for variable, rate in found.items():
            twice = name in CAFFES and variable.endswith("bias")
            assert rate == (0.1 if variable in tenth else 2 if twice else 1), variable
