"""Buckets: they cover the gradient in the order of backward; their length follows the latency."""

from itertools import pairwise

import numpy as np
import pytest

from hpcdl.training.parts.bucketing import MIN_FITTED, bucket_bytes, buckets


def spans(*sizes):
    ends = np.cumsum([0, *sizes]).tolist()
    return [slice(begin, end) for begin, end in pairwise(ends)]


SIZES = [(7,), (5, 0, 12, 3), (0, 0), (), (1, 100, 1), (0, 3, 3, 0), (40, 30, 20, 10, 1), (1000, 1)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("smallest", [1, 4, 10, 1000])
def test_slices_cover_the_vector_from_its_end_to_its_start(sizes, smallest):
    found = buckets(spans(*sizes), smallest)
    end = sum(sizes)
    for piece in found:
        assert piece.start < piece.stop == end
        end = piece.start
    assert end == 0
    lengths = [piece.stop - piece.start for piece in found]
    assert all(smallest <= length < 2 * smallest for length in lengths[:-1])
    assert all(length < 2 * smallest for length in lengths[-1:])


def test_stages_with_a_gap_and_slices_without_elements_are_refused():
    with pytest.raises(ValueError, match="one ends at 3, the next begins at 4"):
        buckets([slice(0, 3), slice(4, 5)], 2)
    with pytest.raises(ValueError, match="smallest = 0"):
        buckets(spans(3), 0)


@pytest.mark.parametrize("ranks", [2, 3, 8, 17])
@pytest.mark.parametrize(("alpha", "beta"), [(100e-6, 1 / 25e6), (2e-6, 1 / 10e9)])
def test_the_latency_of_a_ring_is_the_given_share_of_its_transfer(ranks, alpha, beta):
    size = bucket_bytes(alpha, beta, ranks, latency=0.05)
    share = (2 * (ranks - 1) * alpha) / (2 * size * (ranks - 1) / ranks * beta)
    assert share == pytest.approx(0.05, rel=1e-3)


def test_no_network_has_thousands_of_buckets():
    for alpha, beta in [(0, 1e-9), (1, 1)]:
        assert bucket_bytes(alpha, beta, 4) == MIN_FITTED


def test_impossible_alpha_beta_and_ranks_are_refused():
    for wrong in ((-1, 1e-9, 4), (1e-6, 0, 4), (1e-6, 1e-9, 0)):
        with pytest.raises(ValueError, match="alpha must be at least 0, the others more than 0"):
            bucket_bytes(*wrong)
