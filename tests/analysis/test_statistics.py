import math

import numpy as np
import pytest
import scipy.stats

from hpcdl.analysis.run.scaling import bus_factor
from hpcdl.analysis.statistics.estimates import (
    difference_interval,
    launches_interval,
    mean_interval,
    median_interval,
    ratio_interval,
)


def test_order_statistics_are_those_of_the_books():
    for n, low, high in [
        (6, 1, 6),
        (8, 1, 8),
        (9, 2, 8),
        (10, 2, 9),
        (15, 4, 12),
        (20, 6, 15),
        (25, 8, 18),
        (100, 40, 61),
    ]:
        values = np.random.default_rng(n).permutation(np.arange(1, n + 1))
        assert median_interval(values) == ((n + 1) / 2, low, high)


def test_too_little_data_has_no_interval():
    for n in range(1, 6):
        found = median_interval(np.arange(n))
        assert found.value == (n - 1) / 2
        assert math.isnan(found.low)
        assert math.isnan(found.high)
    assert all(map(math.isnan, median_interval([])))


def test_a_single_value_has_a_mean_and_no_interval():
    found = mean_interval([4.0])
    assert found.value == 4.0
    assert math.isnan(found.low)
    assert all(map(math.isnan, mean_interval([])))


def test_means_feel_what_medians_do_not():
    rare = np.array([1.0] * 19 + [21.0])
    assert launches_interval([rare]).value == 1.0
    assert launches_interval([rare], "mean").value == 2.0
    found = ratio_interval([rare], [np.ones(20)], middles=("mean", "median"))
    assert found.value == 2.0
    assert found.low < 2.0 < found.high


def test_launches_are_the_unit():
    launches = [np.full(50, float(value)) for value in (1, 2, 3, 4, 5, 6)]
    assert launches_interval(launches) == (3.5, 1, 6)
    few = launches_interval([np.full(9, 2.0), np.full(5, 8.0)])
    reach = scipy.stats.t.ppf(0.975, 1) * math.log(2)  # logarithms differ by log(2) from their mean
    assert few == pytest.approx((5, 4 * math.exp(-reach), 4 * math.exp(reach)))
    assert all(map(math.isnan, launches_interval([np.empty(0)])))


def test_ratio_of_medians_of_one_launch_has_the_bounds_of_both_intervals():
    random = np.random.default_rng(1)
    a, b = random.exponential(size=30), 1 + random.exponential(size=41)
    ratio, own, other = ratio_interval([a], [b]), median_interval(a), median_interval(b)
    assert ratio == (np.median(a) / np.median(b), own.low / other.high, own.high / other.low)


def test_welchs_interval_is_scipys():
    random = np.random.default_rng(6)
    sides = [[random.lognormal(mean, 0.2, 9) for _ in range(count)] for mean, count in ((0, 3), (0.5, 4))]
    a, b = ([math.log(np.median(launch)) for launch in side] for side in sides)
    expected = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    found = ratio_interval(*sides)
    assert (found.low, found.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    difference = difference_interval(*sides)
    medians = [[np.median(launch) for launch in side] for side in sides]
    expected = scipy.stats.ttest_ind(*medians, equal_var=False).confidence_interval(0.95)
    assert (difference.low, difference.high) == pytest.approx((expected.low, expected.high))


def test_ratio_with_too_little_data():
    some = np.arange(1.0, 11)
    assert ratio_interval([some], [some[:3]])[0] == 5.5 / 2
    assert math.isnan(ratio_interval([some], [some[:3]]).low)
    assert all(map(math.isnan, ratio_interval([], [some])))
    assert all(map(math.isnan, ratio_interval([some], [np.zeros(10)])))


def test_bus_factors_are_those_of_nccl_tests():
    assert bus_factor("allreduce", 4) == 1.5
    assert bus_factor("allreduce", 2) == 1.0
    assert bus_factor("allreduce", 1) == 0.0
    for collective in ("reduce_scatter", "allgather", "all_to_all"):
        assert bus_factor(collective, 4) == 0.75
    for collective in ("broadcast", "reduce", "exchange"):
        assert bus_factor(collective, 4) == 1.0
    assert bus_factor("barrier", 4) is None
