"""Rounded weights and activations, and the straight-through gradient."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from hpcdl.nn.backend import backend
from hpcdl.nn.layers.affine import Linear
from hpcdl.nn.layers.elementwise import Flatten
from hpcdl.nn.reduced_weights import Quantization, quantized, round_rows
from hpcdl.nn.replica import Replica

SHAPE, CLASSES = (3, 2, 1), 4


def replica(bits=None, hidden=5):
    layers = [Flatten("flatten"), Linear("fc1", hidden, relu=True), Linear("fc2", CLASSES)]
    layers = layers if bits is None else quantized(layers, bits)
    return Replica(layers, SHAPE, backend=backend("numpy"), dtype="float64", seed=2)


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
    for images in [0, 1, 7]:
        bits = Quantization(weights=5, activations=3)
        mine, plain = replica(bits), replica()
        random = np.random.default_rng(images)
        x, dy = random.standard_normal((images, *SHAPE)), random.standard_normal((images, CLASSES))
        tensors = {one.name: one for one in mine.tensors}
        first, second = (
            round_rows(plain.parameters[tensors[f"{name}.weight"].span][None], 5, signed=True).reshape(
                tensors[f"{name}.weight"].shape
            )
            for name in ("fc1", "fc2")
        )
        given = round_rows(x.reshape(images, 6), 3, signed=False)
        before = given @ first.T
        hidden = round_rows(np.maximum(before, 0), 3, signed=False)
        y = x
        for stage in mine.stages:
            y = stage.forward(y)
        np.testing.assert_allclose(y, hidden @ second.T, atol=1e-12)
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
        net = Replica(layers, images.shape[1:], backend=backend("numpy"), dtype="float32", seed=5)
        net.reseed(3)
        losses.append((step(net, images, labels, 1 / 6)[0], net.gradients.copy()))
    (loss, gradients), (rounded_loss, rounded) = losses
    assert rounded_loss == pytest.approx(loss, rel=1e-3)
    assert np.linalg.norm(rounded - gradients) < 0.05 * np.linalg.norm(gradients)
    assert not np.array_equal(rounded, gradients)
