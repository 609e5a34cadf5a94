"""Encoders: what is sent and what is kept is the input; impossible values and messages are refused."""

import numpy as np
import pytest
from contract.compressors import decoded, encoded, layout
from hypothesis import example, given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from hpcdl import registry
from hpcdl.compression.qsgd import QSGD
from hpcdl.compression.terngrad import TernGrad

COMPRESSORS = [registry.find("compression", name) for name in registry.names("compression")]
ENCODERS = [one for one in COMPRESSORS if hasattr(one, "encode")]
RANDOM = [TernGrad, QSGD]
SHAPES = [(5, 7), (11,), (3, 2, 2, 4), (1,), (257,)]
"""Of a gradient of 352 entries; no tensor begins at a multiple of 8 but the first."""
LENGTH = 352
VALUES = (
    some.floats(-(2.0**100), 2.0**100, width=32) | some.floats(-(2.0**-126), 2.0**-126, width=32) | some.just(0)
)
VECTORS = arrays("float32", some.integers(0, LENGTH), elements=VALUES, fill=VALUES)
"""With denormal numbers and zeros."""


@pytest.fixture
def random():
    return np.random.default_rng(19)


@pytest.mark.parametrize("make", ENCODERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shapes", [SHAPES, []])
@settings(max_examples=12, deadline=None)
@given(vector=VECTORS)
@example(vector=np.empty(0, "float32"))
@example(vector=np.full(1, 1e-45, "float32"))
def test_sent_and_kept_are_the_input(make, shapes, dtype, vector):
    """Of the last entries of the gradient."""
    vector, span = vector.astype(dtype), slice(LENGTH - len(vector), LENGTH)
    encoder = make(layout(shapes, dtype=dtype))
    message, kept = encoded(encoder, vector, span, step=len(vector))
    sent = decoded(encoder, message, span, dtype)
    error = np.abs(sent.astype("float64") + kept - vector)
    assert np.all(error <= np.finfo(dtype).eps * np.maximum(np.abs(sent), np.abs(kept)))
    assert len(message) <= encoder.bound(span)
    assert encoder.expected(span) in {None, len(message)}


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


@pytest.mark.parametrize("make", ENCODERS)
def test_equal_seeds_ranks_and_steps_make_equal_messages(make, random):
    vector = random.standard_normal(LENGTH).astype("float32")

    def message(step=0, **fields):
        return encoded(make(layout(SHAPES, **fields)), vector, step=step)[0].tobytes()

    assert message(step=7, seed=3, rank=2) == message(step=7, seed=3, rank=2)
    if make in RANDOM:
        assert len({message(), message(step=1), message(seed=1), message(rank=1)}) == 4


@pytest.mark.parametrize("make", ENCODERS)
def test_error_feedback_sends_everything_in_the_end(make, random):
    """The sum of messages is the sum of gradients less the last residual, which stays bounded."""
    encoder = make(layout(SHAPES))
    carried, total, sent = (np.zeros(LENGTH, "float32") for _ in range(3))
    for step in range(50):
        gradient = random.standard_normal(LENGTH).astype("float32")
        total += gradient
        message, carried = encoded(encoder, gradient + carried, step=step)
        encoder.decode(slice(0, LENGTH), message, sent)
    np.testing.assert_allclose(sent + carried, total, atol=1e-3)
    assert np.linalg.norm(carried) < 50 * np.sqrt(LENGTH)
