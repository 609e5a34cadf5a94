"""Encoders: blocks, impossible messages, random draws; one bit per entry, and Deep Compression, as defined."""

import numpy as np
import pytest
from contract.compressors import decoded, encoded

from hpcdl import registry
from hpcdl.commands.parts.contracts import SHAPES, layout
from hpcdl.compression.deep_compression import DeepCompression, clusters_of, nearest
from hpcdl.compression.random_quantizers import QSGD, TernGrad
from hpcdl.compression.two_values import EFSign, OneBit, Sign
from hpcdl.models.caffe import lenet5
from hpcdl.nn.backend import backend
from hpcdl.nn.replica import Replica

COMPRESSORS = [registry.find("compression", name) for name in registry.names("compression")]
ENCODERS = [one for one in COMPRESSORS if hasattr(one, "encode")]
LENGTH = layout(SHAPES).size


@pytest.fixture
def random():
    return np.random.default_rng(19)


@pytest.mark.parametrize("make", ENCODERS)
@pytest.mark.parametrize("length", [1, 7, 4095, 4096, 4097, 12_345])
def test_blocks_fit_together(make, length, random):
    """Entries of all blocks and both ends; the decoder adds to what is there."""
    vector = random.standard_normal(length).astype("float32")
    encoder = make(layout([(length // 2, 1), (length - length // 2,)]))
    span = slice(0, length)
    message, kept = encoded(encoder, vector)
    into = vector.copy()
    encoder.decode(span, message, into)
    np.testing.assert_allclose(into - vector + kept, vector, atol=2e-5)


@pytest.mark.parametrize("make", ENCODERS)
def test_random_messages_are_refused_or_finite(make, random):
    encoder = make(layout(SHAPES))
    span, refused = slice(1, LENGTH), 0
    message, _ = encoded(encoder, random.standard_normal(LENGTH - 1).astype("float32"), span)
    for _ in range(300):
        wrong = message.copy()
        wrong[random.integers(len(wrong), size=3)] = random.integers(256, size=3)
        try:
            assert np.isfinite(decoded(encoder, wrong, span)).all()
        except ValueError as error:
            assert "corrupt" in str(error) or "Huffman" in str(error)
            refused += 1
    assert refused < 300


@pytest.mark.parametrize("make", [TernGrad, QSGD])
def test_seeds_ranks_and_steps_make_different_messages(make, random):
    vector = random.standard_normal(LENGTH).astype("float32")
    messages = [
        encoded(make(layout(SHAPES, **fields)), vector, step=step)[0].tobytes()
        for step, fields in ((0, {}), (1, {}), (0, {"seed": 1}), (0, {"rank": 1}))
    ]
    assert len({*messages}) == 4


def transcription(vector, columns):
    """Return the quantised vector and the columns' values (Seide et al. 2014, section 3.2)."""
    sent, values = np.empty_like(vector), []
    for column in columns:
        x = vector[column].astype("float64")
        one = x >= 0
        low = x[~one].mean() if (~one).any() else 0.0
        high = x[one].mean() if one.any() else 0.0
        sent[column] = np.where(one, high, low)
        values.append((low, high))
    return sent, values


def columns_of(shapes):
    """Return the slices of all weights of each output of matrices, and of whole vectors."""
    offset = 0
    for shape in shapes:
        length = int(np.prod(shape[1:])) if len(shape) > 1 else shape[0]
        for _ in range(int(np.prod(shape)) // length):
            yield slice(offset, offset + length)
            offset += length


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shapes", [[(6, 5), (4,), (3, 2, 2, 3), (1,), (2, 600)], [(6, 5)], [(1,)], [(3, 1)]])
def test_one_bit_quantises_as_defined(shapes, dtype):
    columns = list(columns_of(shapes))
    size = columns[-1].stop
    vector = np.random.default_rng(size).standard_normal(size).astype(dtype)
    vector[::7] = 0
    encoder, whole = OneBit(layout(shapes, dtype=dtype)), slice(0, size)
    message, kept = encoded(encoder, vector)
    sent, values = transcription(vector, columns)
    np.testing.assert_allclose(decoded(encoder, message, whole, dtype), sent, rtol=1e-6)
    np.testing.assert_allclose(kept, vector - sent, rtol=1e-5, atol=1e-6)
    header = 2 * len(columns) * vector.itemsize
    np.testing.assert_allclose(message[:header].view(dtype).reshape(-1, 2), values, rtol=1e-6)
    np.testing.assert_array_equal(np.unpackbits(message[header:], bitorder="little")[:size], vector < 0)
    assert len(message) == header + -(-size // 8)


def test_a_span_that_cuts_columns_has_values_of_its_own():
    vector = np.arange(-6, 9, dtype="float32")
    encoder, span = OneBit(layout([(4, 5)])), slice(3, 18)
    message, _ = encoded(encoder, vector, span)
    parts = [slice(0, 2), slice(2, 7), slice(7, 12), slice(12, 15)]
    np.testing.assert_array_equal(decoded(encoder, message, span), transcription(vector, parts)[0])


VOTES = 1003


def test_a_server_takes_the_majority_at_one_bit_per_entry_each_way():
    for ranks in [1, 2, 3, 8]:
        gradients = np.random.default_rng(ranks).standard_normal((ranks, VOTES)).astype("float32")
        sign, span = Sign(layout([(VOTES,)])), slice(0, VOTES)
        votes = np.zeros(VOTES, "float32")
        for gradient in gradients:
            message, _ = encoded(sign, gradient)
            assert len(message) == -(-VOTES // 8)
            sign.decode(span, message, votes)
        np.testing.assert_array_equal(votes, np.sign(gradients).sum(axis=0))
        back, _ = encoded(sign, votes)
        assert len(back) == -(-VOTES // 8)
        decided = votes != 0
        vote = decoded(sign, back, span)
        np.testing.assert_array_equal(vote[decided], np.sign(votes[decided]))
        assert set(vote) <= {-1, 1}
        assert decided.all() == (ranks % 2 == 1)


@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("start", [0, 3])
def test_ties_take_turns(zero, start):
    """A weight without gradient moves there and back; where buckets are cut does not matter."""
    sign, span = Sign(layout([])), slice(start, start + VOTES)
    for step in (4, 5):
        message, _ = encoded(sign, np.full(VOTES, zero, "float32"), span, step)
        positions = np.arange(span.start, span.stop)
        np.testing.assert_array_equal(decoded(sign, message, span), (-1.0) ** (positions + step))


def test_ef_sign_scales_each_tensor_by_its_mean_magnitude():
    """Also a part of a tensor within a span."""
    vector = np.array([1, -3, 2, 0, -0.5, 10], "float32")
    encoder, span = EFSign(layout([(2, 2), (3,)])), slice(1, 7)
    message, _ = encoded(encoder, vector, span)
    np.testing.assert_array_equal(decoded(encoder, message, span), [2, -2, 2, 3.5, -3.5, 3.5])
    assert len(message) == 2 * 4 + 1


def lloyd(values, clusters):
    """k-means by its definition: nearest centroid, then mean; from centroids at equal distances."""
    centroids = np.linspace(values.min(), values.max(), clusters)
    for _ in range(1000):
        number = np.abs(values[:, None] - centroids).argmin(axis=1)
        before = centroids.copy()
        for k in set(number):
            centroids[k] = values[number == k].mean()
        if np.array_equal(before, centroids):
            break
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
