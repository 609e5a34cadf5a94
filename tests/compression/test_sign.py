"""signSGD: majority vote, ties, 2 bits per entry both ways."""

import numpy as np
import pytest
from contract.compressors import decoded, encoded, layout

from hpcdl.compression.two_values import EFSign, Sign

LENGTH = 1003


def test_a_server_takes_the_majority_at_one_bit_per_entry_each_way():
    for ranks in [1, 2, 3, 8]:
        gradients = np.random.default_rng(ranks).standard_normal((ranks, LENGTH)).astype("float32")
        sign, span = Sign(layout([(LENGTH,)])), slice(0, LENGTH)
        votes = np.zeros(LENGTH, "float32")
        for gradient in gradients:
            message, _ = encoded(sign, gradient)
            assert len(message) == -(-LENGTH // 8)
            sign.decode(span, message, votes)
        np.testing.assert_array_equal(votes, np.sign(gradients).sum(axis=0))
        back, _ = encoded(sign, votes)
        assert len(back) == -(-LENGTH // 8)
        decided = votes != 0
        vote = decoded(sign, back, span)
        np.testing.assert_array_equal(vote[decided], np.sign(votes[decided]))
        assert set(vote) <= {-1, 1}
        assert decided.all() == (ranks % 2 == 1)


@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("start", [0, 3])
def test_ties_take_turns(zero, start):
    """A weight without gradient moves there and back; where buckets are cut does not matter."""
    sign, span = Sign(layout([])), slice(start, start + LENGTH)
    for step in (4, 5):
        message, _ = encoded(sign, np.full(LENGTH, zero, "float32"), span, step)
        positions = np.arange(span.start, span.stop)
        np.testing.assert_array_equal(decoded(sign, message, span), (-1.0) ** (positions + step))


def test_ef_sign_scales_each_tensor_by_its_mean_magnitude():
    """Also a part of a tensor within a span."""
    vector = np.array([1, -3, 2, 0, -0.5, 10], "float32")
    encoder, span = EFSign(layout([(2, 2), (3,)])), slice(1, 7)
    message, _ = encoded(encoder, vector, span)
    np.testing.assert_array_equal(decoded(encoder, message, span), [2, -2, 2, 3.5, -3.5, 3.5])
    assert len(message) == 2 * 4 + 1
