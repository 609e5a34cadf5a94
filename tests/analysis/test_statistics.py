"""Intervals of medians, means and ratios, Welch's test, and its adjustment for many comparisons."""

import numpy as np
import pytest
import scipy.stats

from hpcdl.analysis.run.scaling import bus_factor
from hpcdl.analysis.statistics.differences import Difference, adjusted, difference, smallest_visible
from hpcdl.analysis.statistics.estimates import (
    launches_interval,
    mean_interval,
    median_interval,
    share_interval,
)


def is_unknown(*values):
    return np.isnan(values).all()


def test_order_statistics_are_those_of_the_books():
    for n, low, high in [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (15, 4, 12), (20, 6, 15), (25, 8, 18), (100, 40, 61)]:  # fmt: skip
        values = np.random.default_rng(n).permutation(np.arange(1, n + 1))
        assert median_interval(values) == ((n + 1) / 2, low, high)


def test_too_little_data_has_no_interval():
    for n in range(1, 6):
        value, *bounds = median_interval(np.arange(n))
        assert value == (n - 1) / 2
        assert is_unknown(*bounds)
    value, *bounds = mean_interval([4.0])
    assert value == 4.0
    assert is_unknown(*bounds, *median_interval([]), *mean_interval([]), *launches_interval([np.empty(0)]))
    value, *bounds = launches_interval([np.arange(1.0, 11)])
    assert value == 5.5 and is_unknown(*bounds)  # repetitions of one launch
    rare = np.array([1.0] * 19 + [21.0])
    assert [launches_interval([rare], *mean).value for mean in ((), ("mean",))] == [1.0, 2.0]


def test_intervals_of_shares_hold_for_all_hosts_together():
    samples = np.exp(np.random.default_rng(3).normal(size=9))
    expected = scipy.stats.t.interval(1 - 0.05 / 8, 8, np.log(samples).mean(), scipy.stats.sem(np.log(samples)))
    assert share_interval(0.9, samples, 8) == pytest.approx((0.9, *np.exp(expected)))


def test_the_smallest_visible_difference_is_found_in_four_of_five_tests():
    known = Difference(np.zeros(1), np.ones(1), np.full(1, 1000.0))
    for comparisons in (1, 12):
        reach = scipy.stats.norm.ppf(1 - 0.025 / comparisons) + scipy.stats.norm.ppf(0.8)
        assert smallest_visible(known, 0.0, comparisons) == pytest.approx(reach, rel=0.02)


@pytest.mark.parametrize("sizes", [(2, 2), (3, 7), (20, 4)])
def test_p_values_and_intervals_are_those_of_scipy(sizes):
    generator = np.random.default_rng(3)
    before, now = generator.normal(0, 1, (40, sizes[0])), generator.normal(0.5, 3, (40, sizes[1]))
    welch, theirs = difference(before, now), scipy.stats.ttest_ind(now, before, axis=1, equal_var=False)
    assert welch.p == pytest.approx(theirs.pvalue, rel=1e-4)
    for bound, expected in zip(welch.bounds(), theirs.confidence_interval(0.95), strict=True):
        assert bound == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_a_side_of_one_value_takes_the_variance_of_the_other_and_equal_values_need_no_test():
    many, single = np.array([1.0, 2.0, 4.0, 5.0]), np.array([9.0])
    student = difference([many], [single])
    assert student.freedom == 3
    assert student.p == pytest.approx(scipy.stats.ttest_ind(many, single).pvalue)
    assert is_unknown(*difference([single], [single]).p)
    same, other = np.ones(3), np.full(3, 2.0)
    exact = difference([same, same], [same, other])
    assert exact.p == pytest.approx([1, 0])
    assert [bound.tolist() for bound in exact.bounds()] == [[0, 1], [0, 1]]


def test_adjusted_p_values_are_those_of_scipy():
    p = np.random.default_rng(0).uniform(0, 1, 50) ** 3
    assert adjusted(p) == pytest.approx(scipy.stats.false_discovery_control(p))
    first, unknown, second = adjusted(np.array([0.01, np.nan, 0.04]))
    assert (first, second) == pytest.approx((0.02, 0.04))
    assert is_unknown(unknown)


def test_bus_factors_are_those_of_nccl_tests():
    assert [bus_factor("allreduce", ranks) for ranks in (1, 2, 4)] == [0.0, 1.0, 1.5]
    for collective in ("reduce_scatter", "allgather", "all_to_all"):
        assert bus_factor(collective, 4) == 0.75
    for collective in ("broadcast", "reduce", "exchange"):
        assert bus_factor(collective, 4) == 1.0
    assert bus_factor("barrier", 4) is None
