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
    slowest,
    student_quantile,
)


def test_slowest_rank_per_iteration_in_any_order():
    steps, maxima = slowest(np.array([5, 3, 5, 3, 4]), np.array([1.0, 2.0, 7.0, 0.5, 3.0]))
    assert steps.tolist() == [3, 4, 5]
    assert maxima.tolist() == [2.0, 3.0, 7.0]


@pytest.mark.parametrize(
    ("n", "low", "high"),
    # textbook ranks of the 95 % interval of the median (Conover, Practical Nonparametric Statistics)
    [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (15, 4, 12), (20, 6, 15), (25, 8, 18), (100, 40, 61)],
)
def test_order_statistics_are_those_of_the_books(n, low, high):
    values = np.random.default_rng(n).permutation(np.arange(1, n + 1))
    assert median_interval(values) == ((n + 1) / 2, low, high)


def test_too_little_data_has_no_interval():
    for n in range(1, 6):
        found = median_interval(np.arange(n))
        assert found.value == (n - 1) / 2
        assert math.isnan(found.low)
        assert math.isnan(found.high)
    assert all(map(math.isnan, median_interval([])))


def test_coverage_of_the_median_interval():
    random = np.random.default_rng(0)
    for n, draw, median in (
        (12, random.exponential, math.log(2)),
        (51, random.standard_cauchy, 0.0),
    ):
        found = [median_interval(draw(size=n)) for _ in range(2000)]
        covered = np.mean([one.low <= median <= one.high for one in found])
        assert 0.94 < covered < 0.985, (n, covered)


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (29, 2.045), (120, 1.980)],
)
def test_students_quantiles_are_those_of_the_tables(freedom, expected):
    assert student_quantile(freedom, 0.95) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 2.5, 3.7, 29, 120.5])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_students_quantiles_are_scipys(freedom, confidence):
    expected = scipy.stats.t.ppf((1 + confidence) / 2, freedom)
    assert student_quantile(freedom, confidence) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_coverage_of_the_mean_interval():
    random = np.random.default_rng(0)
    for n in (2, 3, 20):
        found = [mean_interval(random.normal(3.0, 2.0, n)) for _ in range(4000)]
        assert np.mean([one.low <= 3.0 <= one.high for one in found]) == pytest.approx(0.95, abs=0.012)


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


def test_ratio_interval_covers():
    random = np.random.default_rng(3)
    hits = 0
    for _ in range(300):
        sides = [[random.lognormal(mean, 0.1, 40)] for mean in (0.0, 0.5)]
        found = ratio_interval(*sides)
        hits += found.low <= math.exp(-0.5) <= found.high
    assert hits / 300 > 0.9


def test_launches_that_differ_widen_the_ratio():
    random = np.random.default_rng(4)
    base = [random.normal(1, 0.01, 50) for _ in range(5)]
    same = ratio_interval(base, base)
    apart = ratio_interval(
        [launch + shift for launch, shift in zip(base, (0, 0.1, 0.2, 0.3, 0.4), strict=True)], base
    )
    assert apart.high - apart.low > 10 * (same.high - same.low)


@pytest.mark.slow
@pytest.mark.parametrize("launches", [2, 3, 5])
def test_launches_that_did_not_change_are_seldom_said_to_have(launches):
    """Their medians vary by 5 %, their iterations by 1 %: at most one ratio in twenty may exclude 1."""
    random = np.random.default_rng(launches)

    def side():
        return [random.lognormal(random.normal(0, 0.05), 0.01, 20) for _ in range(launches)]

    found = [ratio_interval(side(), side()) for _ in range(3000)]
    excluded = np.mean([not one.low <= 1 <= one.high for one in found])
    assert 0.01 < excluded < 0.06


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


def test_difference_of_medians():
    random = np.random.default_rng(5)
    a, b = random.normal(5, 1, 60), random.normal(3, 1, 60)
    found = difference_interval([a], [b])
    assert found.value == np.median(a) - np.median(b)
    assert found.low < 2 < found.high
    assert found.high - found.low < 1.5
    same = difference_interval([a], [a])
    assert same.low < 0 < same.high
    assert all(map(math.isnan, difference_interval([a], [])))


def test_bus_factors_are_those_of_nccl_tests():
    assert bus_factor("allreduce", 4) == 1.5
    assert bus_factor("allreduce", 2) == 1.0
    assert bus_factor("allreduce", 1) == 0.0
    for collective in ("reduce_scatter", "allgather", "all_to_all"):
        assert bus_factor(collective, 4) == 0.75
    for collective in ("broadcast", "reduce", "exchange"):
        assert bus_factor(collective, 4) == 1.0
    assert bus_factor("barrier", 4) is None
