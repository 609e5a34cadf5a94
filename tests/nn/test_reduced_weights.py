"""Pruned networks: which weights are zero, and that they stay so; rounded weights and activations."""

import numpy as np
import pytest
from contract import networks
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from hpcdl.nn.backend import backend
from hpcdl.nn.layers import Flatten, Linear
from hpcdl.nn.reduced_weights import Pruning, Quantization, prune, pruned, quantized, round_rows
from hpcdl.nn.replica import Replica
from hpcdl.optim.adaptive import Adam
from hpcdl.optim.sgd import SGD, Nesterov

SHARE = 0.75


def made(layers, shape, dtype="float64"):
    return Replica(layers, shape, backend=backend("numpy"), dtype=dtype, seed=2)


def split(replica, vector):
    """Return the entries of matrices, of each by its name, and those of all vectors."""
    matrices = {one.name: vector[one.span] for one in replica.tensors if len(one.shape) > 1}
    vectors = [vector[one.span] for one in replica.tensors if len(one.shape) == 1]
    return matrices, np.concatenate(vectors)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.99])
def test_the_smallest_are_pruned(size, sparsity):
    weight = np.random.default_rng(size).standard_normal((1, size))
    left = weight.copy()
    for _ in range(2):  # the second time changes nothing
        prune(left, sparsity)
        kept = left != 0
        assert kept.sum() == size - int(sparsity * size)
        np.testing.assert_array_equal(left[kept], weight[kept])
        assert np.abs(weight[~kept]).max(initial=0) < np.abs(weight[kept]).min()


def test_pruned_weights_stay_zero_in_training(zoo, batch, step):
    """Of all kinds of layers; evaluations in between change nothing."""
    for optimizer in [lambda: SGD(momentum=0.9, weight_decay=0.1), Nesterov, Adam]:
        images, labels = batch(5)
        net, rule = made(pruned(zoo(), Pruning(sparsity=SHARE)), images.shape[1:]), optimizer()
        dense = made(zoo(), images.shape[1:])
        before = net.parameters.copy()
        matrices, vectors = split(net, before)
        whole, same = split(dense, dense.parameters)
        np.testing.assert_array_equal(vectors, same)
        for name, weight in matrices.items():
            np.testing.assert_array_equal(weight[weight != 0], whole[name][weight != 0])
            assert np.count_nonzero(weight) == weight.size - int(SHARE * weight.size)
        for _ in range(3):
            step(net, images, labels, 1 / 5)
            matrices, _ = split(net, net.gradients)
            assert all(np.count_nonzero(one) <= one.size - int(SHARE * one.size) for one in matrices.values())
            rule.update(net.parameters, net.gradients, 0.01)
            net.predict(images)
        for name, weight in split(net, net.parameters)[0].items():
            np.testing.assert_array_equal(weight == 0, split(net, before)[0][name] == 0)
        assert not np.array_equal(net.parameters, before)


def test_a_trained_network_is_pruned_and_trained_again(zoo, batch, step):
    """Pruned are the smallest weights after three steps; momentum of these brings none of them back."""
    images, labels = batch(5)
    net, rule = made(pruned(zoo(), Pruning(sparsity=SHARE, after_steps=3)), images.shape[1:]), SGD(momentum=0.9)
    dense, same = made(zoo(), images.shape[1:]), SGD(momentum=0.9)
    for number in range(6):
        for replica, update in ((net, rule), (dense, same))[: 2 if number < 3 else 1]:
            step(replica, images, labels, 1 / 5)
            update.update(replica.parameters, replica.gradients, 0.01)
        if number == 2:
            np.testing.assert_array_equal(net.parameters, dense.parameters)
            smallest = {name: np.abs(one) for name, one in split(dense, dense.parameters)[0].items()}
    step(net, images, labels, 1 / 5)
    for name, weight in split(net, net.parameters)[0].items():
        pruned_away = int(SHARE * weight.size)
        assert np.count_nonzero(weight == 0) == pruned_away
        assert set(np.flatnonzero(weight == 0)) == set(np.argsort(smallest[name], kind="stable")[:pruned_away])


def test_gradients_of_other_weights_are_those_of_the_network(zoo, batch, step):
    images, labels = batch(5)
    net = made(pruned(zoo(noisy=False), Pruning(sparsity=SHARE)), images.shape[1:])
    same = made(zoo(noisy=False), images.shape[1:])
    same.parameters[:] = net.parameters
    for replica in (net, same):
        step(replica, images, labels, 1 / 5)
    matrices, vectors = split(net, net.gradients)
    expected, others = split(same, same.gradients)
    np.testing.assert_array_equal(vectors, others)
    for name, weight in split(net, net.parameters)[0].items():
        np.testing.assert_array_equal(matrices[name], expected[name] * (weight != 0))


SHAPE, CLASSES = (3, 2, 1), 4


def dorefa(x, bits):
    """q_k of the paper, for magnitudes relative to the largest."""
    n = 2**bits - 1
    return np.round(n * x) / n


def test_magnitudes_are_rounded_as_defined():
    for bits in [2, 3, 8, 16]:
        x = np.random.default_rng(bits).uniform(0, 7, (3, 50))
        most = x.max(axis=1, keepdims=True)
        np.testing.assert_allclose(round_rows(x, bits, signed=False), most * dorefa(x / most, bits), rtol=1e-12)
        x[:, ::2] *= -1
        most = np.abs(x).max(axis=1, keepdims=True)
        expected = np.sign(x) * most * dorefa(np.abs(x) / most, bits - 1)
        for signed in (True, False):
            np.testing.assert_allclose(round_rows(x, bits, signed=signed), expected, rtol=1e-12)
        assert len(np.unique(round_rows(x[:1], bits, signed=True))) < 2**bits


TINY = 4e-34
"""Rows of smaller magnitudes become zeros: 2^15 steps of the smallest normal number."""


@pytest.mark.parametrize("signed", [True, False])
@settings(deadline=None, max_examples=200)
@given(
    rows=arrays("float32", (2, 9), elements=some.floats(-(2.0**100), 2.0**100, width=32)),
    bits=some.integers(2, 16),
)
def test_rounding_keeps_signs_zeros_and_the_largest(signed, rows, bits):
    once = round_rows(rows, bits, signed=signed)
    unit = np.abs(rows).max(axis=1, keepdims=True) / ((1 << (bits - 1)) - 1)
    assert np.all(np.abs(once - rows) <= unit * 0.501 + TINY)
    assert np.all(once * np.sign(rows) >= 0)
    largest = np.abs(rows).argmax(axis=1)
    np.testing.assert_allclose(once[[0, 1], largest], rows[[0, 1], largest], rtol=1e-6, atol=TINY)


def test_a_network_computes_with_rounded_weights_and_activations():
    """And passes the gradient of the rounded network to the weights in full precision."""
    layers, bits = (
        [Flatten("flatten"), Linear("fc1", 5, relu=True), Linear("fc2", CLASSES)],
        Quantization(weights=5, activations=3),
    )
    for images in [0, 1, 7]:
        mine, plain = made(quantized(layers, bits), SHAPE), made(layers, SHAPE)
        random = np.random.default_rng(images)
        x, dy = random.standard_normal((images, *SHAPE)), random.standard_normal((images, CLASSES))
        tensors = {one.name: one for one in mine.tensors}
        weights = [one for name, one in tensors.items() if name.endswith("weight")]
        rounded = (round_rows(plain.parameters[one.span][None], 5, signed=True) for one in weights)
        first, second = (flat.reshape(one.shape) for flat, one in zip(rounded, weights, strict=True))
        given = round_rows(x.reshape(images, 6), 3, signed=False)
        before = given @ first.T
        hidden = round_rows(np.maximum(before, 0), 3, signed=False)
        np.testing.assert_allclose(networks.forward(mine, x), hidden @ second.T, atol=1e-12)
        upstream = dy
        for stage in reversed(mine.stages):
            upstream = stage.backward(upstream)
        for name, gradient in (
            ("fc2.weight", dy.T @ hidden),
            ("fc2.bias", dy.sum(axis=0)),
            ("fc1.weight", (dy @ second * (before > 0)).T @ given),
        ):
            got = mine.gradients[tensors[name].span].reshape(tensors[name].shape)
            np.testing.assert_allclose(got, gradient, atol=1e-12)
        np.testing.assert_array_equal(mine.parameters, plain.parameters)
        np.testing.assert_allclose(mine.predict(x), hidden @ second.T, atol=1e-12)


def test_layers_of_every_kind_can_be_quantised(zoo, batch, step):
    """16 bits of both are close to full precision; auxiliary parts and composite layers included."""
    images, labels = batch(6, dtype="float32")
    losses = []
    for layers in (zoo(), quantized(zoo(), Quantization(weights=16, activations=16))):
        net = made(layers, images.shape[1:], "float32")
        net.reseed(3)
        losses.append((step(net, images, labels, 1 / 6)[0], net.gradients.copy()))
    (loss, gradients), (rounded_loss, rounded) = losses
    assert rounded_loss == pytest.approx(loss, rel=1e-3)
    assert np.linalg.norm(rounded - gradients) < 0.05 * np.linalg.norm(gradients)
    assert not np.array_equal(rounded, gradients)
