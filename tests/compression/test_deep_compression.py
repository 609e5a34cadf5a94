"""Deep Compression: pruning, k-means, and the bytes of messages."""

import numpy as np
import pytest
from contract.compressors import decoded, encoded

from hpcdl.commands.parts.array_contracts import layout
from hpcdl.compression.deep_compression import DeepCompression, clusters_of, nearest
from hpcdl.models.caffe import lenet5
from hpcdl.nn.backend import backend
from hpcdl.nn.replica import Replica


def lloyd(values, clusters):
    """k-means by its definition: nearest centroid, then mean; from centroids at equal distances."""
    centroids = np.linspace(values.min(), values.max(), clusters)
    for _ in range(1000):
        number = np.abs(values[:, None] - centroids).argmin(axis=1)
        moved = np.array(
            [values[number == k].mean() if (number == k).any() else centroids[k] for k in range(clusters)]
        )
        if np.array_equal(moved, centroids):
            break
        centroids = moved
    return centroids


@pytest.mark.parametrize("clusters", [2, 4, 16])
@pytest.mark.parametrize("seed", range(5))
def test_clusters_are_those_of_k_means(clusters, seed):
    values = np.random.default_rng(seed).standard_normal(300)
    centroids = clusters_of(values, clusters)
    np.testing.assert_allclose(centroids, np.sort(lloyd(values, clusters)), atol=1e-12)
    distance = np.abs(values[:, None] - centroids)
    np.testing.assert_allclose(distance[np.arange(300), nearest(values, centroids)], distance.min(axis=1))


def test_the_largest_of_each_tensor_are_sent():
    for sparsity in [0.25, 0.9, 0.99]:
        vector = np.random.default_rng(3).standard_normal(3000).astype("float32")
        encoder = DeepCompression(layout([(20, 50), (2000,)]), sparsity=sparsity)
        message, kept = encoded(encoder, vector)
        sent = decoded(encoder, message, slice(0, 3000))
        for tensor in (slice(0, 1000), slice(1000, 3000)):
            magnitudes = np.abs(vector[tensor])
            chosen = sent[tensor] != 0
            assert chosen.sum() == len(chosen) - int(sparsity * len(chosen))
            assert magnitudes[chosen].min() >= magnitudes[~chosen].max()
            assert len(np.unique(sent[tensor])) <= 17
        np.testing.assert_array_equal(kept[sent == 0], vector[sent == 0])


def test_a_pruned_and_clustered_network_is_broadcast_without_loss():
    """Of LeNet-5's parameters; zeros stay zeros, and the second message is the first."""
    replica = Replica(lenet5((28, 28, 1), 10), (28, 28, 1), backend=backend("numpy"), seed=1)
    shapes = [tensor.shape for tensor in replica.tensors]
    encoder = DeepCompression(layout(shapes))
    message, _ = encoded(encoder, replica.parameters)
    span = slice(0, len(replica.parameters))
    pruned = decoded(encoder, message, span)
    again, kept = encoded(encoder, pruned)
    np.testing.assert_array_equal(decoded(encoder, again, span), pruned)
    np.testing.assert_array_equal(kept, 0)
    assert replica.parameters.nbytes / len(message) > 30


def test_impossible_settings_are_refused():
    for changed in [{"sparsity": 1.0}, {"sparsity": -0.1}, {"clusters": 1}, {"clusters": 257}]:
        with pytest.raises(ValueError, match=next(iter(changed))):
            DeepCompression(layout([]), **changed)
