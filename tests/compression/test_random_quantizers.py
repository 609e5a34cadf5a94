"""Random quantisers: unbiased within their stated variance over 10,000 draws; draws of a known generator."""

import numpy as np
import pytest
from contract.compressors import decoded, encoded

from hpcdl.commands.parts.contracts import layout
from hpcdl.compression.kernels import draws
from hpcdl.compression.random_quantizers import QSGD, TernGrad

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
    """Entries beyond are sent as the limit, always."""
    vector = np.random.default_rng(3).standard_normal(200).astype("float32")
    vector[7] = -30
    sent = outcomes(TernGrad, vector)
    limit = np.float32(2.5 * np.sqrt(np.mean(vector.astype("float64") ** 2)))
    np.testing.assert_array_equal(sent[:, 7], -limit)
    assert np.abs(sent).max() == limit
    small = np.abs(vector) < limit
    assert_unbiased(sent[:, small], vector[small], limit * np.abs(vector[small]))


def test_a_constant_tensor_is_sent_whole():
    """Its standard deviation about its mean is zero, and clipping at that would lose it."""
    encoder = TernGrad(layout([(1,), (5,)]))
    vector = np.array([3, 2, 2, 2, 2, 2], "float32")
    message, kept = encoded(encoder, vector)
    np.testing.assert_array_equal(decoded(encoder, message, slice(0, 6)), vector)
    np.testing.assert_array_equal(kept, 0)


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


@pytest.mark.parametrize("levels", [1, 4, 16, 200])
@pytest.mark.parametrize("bucket", [512, 33])
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
    draws.draw(words, np.uint64(1234567), 1)
    assert words.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
