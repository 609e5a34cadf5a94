"""Welch's test and its adjustment for many comparisons."""

import numpy as np
import pytest
from scipy import stats

from hpcdl.analysis.statistics.differences import adjusted, difference


def test_p_values_and_intervals_are_those_of_scipy():
    for sizes in [(2, 2), (3, 7), (20, 4)]:
        generator = np.random.default_rng(3)
        one, other = generator.normal(0, 1, (40, sizes[0])), generator.normal(0.5, 3, (40, sizes[1]))
        found = difference(one, other)
        theirs = stats.ttest_ind(other, one, axis=1, equal_var=False)
        assert found.p == pytest.approx(theirs.pvalue, rel=1e-4)
        bounds = theirs.confidence_interval(0.95)
        low, high = found.bounds()
        assert low == pytest.approx(bounds.low, rel=1e-4, abs=1e-9)
        assert high == pytest.approx(bounds.high, rel=1e-4, abs=1e-9)


def test_a_side_of_one_value_takes_the_variance_of_the_other():
    many, single = np.array([1.0, 2.0, 4.0, 5.0]), np.array([9.0])
    found = difference([many], [single])
    assert found.freedom == 3
    assert found.p == pytest.approx(stats.ttest_ind(many, single).pvalue)
    assert np.isnan(difference([single], [single]).p)


def test_values_without_spread():
    same, other = np.ones(3), np.full(3, 2.0)
    found = difference([same, same], [same, other])
    assert found.p == pytest.approx([1, 0])
    assert [bound.tolist() for bound in found.bounds()] == [[0, 1], [0, 1]]


def test_adjusted_p_values_are_those_of_scipy():
    p = np.random.default_rng(0).uniform(0, 1, 50) ** 3
    assert adjusted(p) == pytest.approx(stats.false_discovery_control(p))
    with_gaps = adjusted(np.array([0.01, np.nan, 0.04]))
    assert with_gaps[[0, 2]] == pytest.approx([0.02, 0.04])
    assert np.isnan(with_gaps[1])
