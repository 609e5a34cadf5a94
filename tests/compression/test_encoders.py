"""Encoders: blocks, impossible messages, random draws; one bit per entry as defined."""

import numpy as np
import pytest
from contract.compressors import decoded, encoded

from hpcdl import registry
from hpcdl.commands.parts.array_contracts import SHAPES, layout
from hpcdl.compression.qsgd import QSGD
from hpcdl.compression.terngrad import TernGrad
from hpcdl.compression.two_values import EFSign, OneBit, Sign

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
