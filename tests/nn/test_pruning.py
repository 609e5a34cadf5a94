"""Pruned networks: which weights are zero, and that they stay so."""

import numpy as np
import pytest

from hpcdl.nn.backend import backend
from hpcdl.nn.reduced_weights import Pruning, prune, pruned
from hpcdl.nn.replica import Replica
from hpcdl.optim.adaptive import Adam
from hpcdl.optim.sgd import SGD, Nesterov

SHARE = 0.75


def made(layers, shape):
    return Replica(layers, shape, backend=backend("numpy"), dtype="float64", seed=2)


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
    prune(left, sparsity)
    kept = left != 0
    assert kept.sum() == size - int(sparsity * size)
    np.testing.assert_array_equal(left[kept], weight[kept])
    assert np.abs(weight[~kept]).max(initial=0) < np.abs(weight[kept]).min()
    again = left.copy()
    prune(again, sparsity)
    np.testing.assert_array_equal(again, left)


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
