"""Encoders, random quantisers and conversions to 16 bits, as their papers and numpy define them."""

import numpy as np
import pytest
from contract.compressors import decoded, encoded

from hpcdl import registry
from hpcdl.commands.parts.contracts import SHAPES, layout
from hpcdl.compression import halves
from hpcdl.compression.deep_compression import DeepCompression, clusters_of, nearest
from hpcdl.compression.halves import BF16, FP16
from hpcdl.compression.kernels import reproducible
from hpcdl.compression.parts.protocol import Layout
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


DRAWS = 10_000


def outcomes(make, vector, **fields):
    """Return 10,000 quantisations (draws, len(vector)) of a vector, each with draws of its own."""
    encoder = make(layout([(len(vector),)] * DRAWS, **fields))
    message, _ = encoded(encoder, np.tile(vector, DRAWS))
    return decoded(encoder, message, slice(0, DRAWS * len(vector))).reshape(DRAWS, -1).astype("float64")


def assert_unbiased(sent, vector, variance):
    """Compare with the mean and each entry's variance; 5 standard errors are one in a million."""
    np.testing.assert_array_less(np.abs(sent.mean(axis=0) - vector), 5 * np.sqrt(variance / DRAWS) + 1e-6)


def test_terngrad_is_unbiased_without_clipping():
    vector = np.random.default_rng(2).standard_normal(40).astype("float32")
    vector[3] = 0
    sent = outcomes(lambda layout: TernGrad(layout, clip=0), vector)
    scaler = np.abs(vector).max()
    variance = scaler * np.abs(vector) - vector.astype("float64") ** 2
    assert_unbiased(sent, vector, variance)
    np.testing.assert_allclose(sent.var(axis=0), variance, atol=5 * scaler**2 / np.sqrt(DRAWS))
    assert set(np.unique(sent)) == {-scaler, 0, scaler}


def test_terngrad_clips_at_standard_deviations():
    """Entries beyond are sent as the limit, always. Of a constant tensor the deviation about its mean would be zero."""
    vector = np.random.default_rng(3).standard_normal(200).astype("float32")
    vector[7] = -30
    sent = outcomes(TernGrad, vector)
    limit = np.float32(2.5 * np.sqrt(np.mean(vector.astype("float64") ** 2)))
    np.testing.assert_array_equal(sent[:, 7], -limit)
    assert np.abs(sent).max() == limit
    small = np.abs(vector) < limit
    assert_unbiased(sent[:, small], vector[small], limit * np.abs(vector[small]))
    np.testing.assert_array_equal(outcomes(TernGrad, np.full(5, 2, "float32")), 2)


def test_cuts_into_buckets_do_not_change_draws():
    """Both pieces have the whole's scaler; spans begin at odd and even positions."""
    vector = np.ones(8195, "float32")
    vector[1:-1] = np.random.default_rng(5).uniform(-1, 1, 8193)
    encoder = TernGrad(layout([]), clip=0)
    whole = decoded(encoder, encoded(encoder, vector)[0], slice(0, 8195))
    for cut in (1, 2, 4097, 8194):
        for span in (slice(0, cut), slice(cut, 8195)):
            message, _ = encoded(encoder, vector[span], span)
            np.testing.assert_array_equal(decoded(encoder, message, span), whole[span])


@pytest.mark.parametrize(("levels", "bucket"), [(1, 512), (16, 33), (200, 512)])
def test_qsgd_is_unbiased_within_its_variance(levels, bucket):
    vector = np.random.default_rng(levels).standard_normal(bucket).astype("float32")
    vector[:3] = 0, 30, -1e-3
    encoder = QSGD(layout([]), levels=levels, bucket=bucket)
    message, _ = encoded(encoder, np.tile(vector, DRAWS))
    sent = decoded(encoder, message, slice(0, DRAWS * bucket)).reshape(DRAWS, bucket)
    x = vector.astype("float64")
    norm = np.linalg.norm(x)
    up = np.abs(x) * levels / norm % 1
    assert_unbiased(sent.astype("float64"), x, up * (1 - up) * (norm / levels) ** 2)
    spread = np.mean(np.sum((sent - x) ** 2, axis=1))
    assert spread <= encoder.variance * norm**2
    assert encoder.variance == min(bucket / levels**2, np.sqrt(bucket) / levels)


def gamma(number):
    """Return the bits of a level with its sign, as text."""
    binary = f"{2 * abs(number) + (number < 0) or 1:b}"
    return "0" * (len(binary) - 1) + "1" + binary[:0:-1]


def test_qsgd_writes_norms_and_gamma_codes():
    for levels, bucket in [(1, 5), (16, 512), (16, 7), (3000, 100), (65_536, 512)]:
        vector = np.random.default_rng(levels).standard_normal(1001).astype("float32")
        encoder, span = QSGD(layout([]), levels=levels, bucket=bucket), slice(0, 1001)
        message, _ = encoded(encoder, vector)
        norms = [np.linalg.norm(vector[i : i + bucket]) for i in range(0, 1001, bucket)]
        header = 4 * len(norms)
        np.testing.assert_allclose(message[:header].view("float32"), norms, rtol=1e-6)
        rounded = decoded(encoder, message, span) / np.repeat(norms, bucket)[:1001] * levels
        np.testing.assert_allclose(rounded, np.rint(rounded), atol=1e-2)
        assert np.abs(rounded - vector / np.repeat(norms, bucket)[:1001] * levels).max() < 1.01
        expected = "".join(map(gamma, np.rint(rounded).astype(int).tolist()))
        written = "".join(map(str, np.unpackbits(message[header:], bitorder="little")))
        assert written == expected + "0" * (-len(expected) % 8)
        assert len(message) <= encoder.bound(span)


def test_qsgd_takes_the_stated_bits_per_entry_of_a_normal_distribution():
    message, _ = encoded(QSGD(layout([])), np.random.default_rng(4).standard_normal(100_000).astype("float32"))
    assert round(8 * len(message) / 100_000, 1) == 2.2


def test_words_are_those_of_splitmix64():
    """Published outputs for the seed 1234567."""
    words = np.empty(5, np.uint64)
    reproducible.draw(words, np.uint64(1234567), 1)
    assert words.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


EDGES = [0, -0.0, 65504, 65519.9, 65520, 1e30, 2.0**-14, 2.0**-24, 2.0**-25, 2.0**-25 * 1.0001, 1e-40, 3e38]


def all_numbers():
    random = np.random.default_rng(0)
    drawn = random.standard_normal(50_000) * 10.0 ** random.integers(-12, 8, 50_000)
    ties = np.arange(0, 1 << 16, dtype=np.uint32) << 16 | 0x8000
    ties = ties.view(np.float32)
    tied = ties[np.isfinite(ties) & (np.abs(ties) < 3e38)]
    return np.concatenate([drawn, EDGES, np.negative(EDGES), tied]).astype(np.float32)


def rounded(compressor, x):
    """Return what is sent of numbers, what the vector becomes, and the residual."""
    vector, residual = x.copy(), np.empty_like(x)
    rounds = compressor(Layout(size=len(x))).rounds(slice(0, len(x)), vector, residual, 0)
    found = np.array(next(rounds))
    assert next(rounds, None) is None
    return found, vector, residual


def test_float16_is_numpys_and_large_numbers_are_the_largest():
    found, vector, residual = rounded(FP16, x := all_numbers())
    expected = np.clip(x, -65504, 65504).astype(np.float16)
    assert (found.view(np.uint16) == expected.view(np.uint16)).all()
    assert (vector == expected.astype(np.float32)).all()
    assert (residual == x - vector).all()


def test_bfloat16_is_the_nearest_and_even_on_ties():
    found, vector, residual = rounded(BF16, x := all_numbers())
    numbers = [np.clip(found.astype(np.int64) + i, 0, 0xFFFF).astype(np.uint32) for i in (-1, 0, 1)]
    around = [(one << 16).view(np.float32) for one in numbers]
    off = [np.abs(one.astype(np.float64) - x) for one in around]
    for one in (0, 2):
        assert (off[1] <= np.where(np.isfinite(around[one]), off[one], np.inf)).all()
    tie = (off[1] == off[0]) | (off[1] == off[2])
    assert tie.any()
    assert not (found[tie & (x != 0)] & 1).any()
    assert (vector == around[1]).all()
    assert (residual == x - vector).all()


def test_bfloat16_adds_in_float32():
    x, y = (np.random.default_rng(seed).integers(-200, 200, 9001) for seed in (1, 2))
    one, other = (halves.zeros(9001, "bfloat16") for _ in range(2))
    for vector, values in ((one, x), (other, y)):
        vector[:] = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    one += other
    total = (np.asarray(one).astype(np.uint32) << 16).view(np.float32)
    assert (np.abs(total - (x + y)) <= np.abs(x + y) * 2.0**-8).all()
    assert (total == x + y)[np.abs(x + y) <= 256].all()


def test_float16_adds_as_numpy_and_infinity_stays():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    other = np.random.default_rng(1).permutation(every)
    with np.errstate(all="ignore"):
        expected = every + other
    found = halves.zeros(len(every), "float16")
    found[:] = every
    found += other
    finite = np.isfinite(expected)
    assert (found[finite].view(np.uint16) == expected[finite].view(np.uint16)).all()
    assert not np.isfinite(found[~finite]).any()
    assert (np.isfinite(every) & np.isfinite(other) & ~finite).any()


def test_a_sum_that_overflows_is_refused():
    for compressor, largest in [(FP16, np.float16(65504)), (BF16, np.uint16(0x7F7F))]:
        rounds = compressor(Layout(size=3)).rounds(slice(0, 3), np.ones(3, np.float32), None, 0)
        vector = next(rounds)
        vector[1] = largest
        vector += vector.copy()
        with pytest.raises(FloatingPointError, match="the sum exceeds"):
            next(rounds)
