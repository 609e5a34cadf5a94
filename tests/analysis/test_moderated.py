"""Tests that measures make together, on simulated truths: false findings, power, outliers, and stated power."""

import math

import numpy as np
import pytest
from analysis.comparison_figures import DRIFTING, UNCHANGED, share

from hpcdl.analysis.statistics.differences import adjusted, difference, moderated, smallest_visible

LAUNCHES = (2, 3, 5, 10, 20)
MEASURES = 12
NOISE = 0.02
LIMIT = math.log1p(0.03)
ROUNDS = 120
BETWEEN = 0.02


def side(generator, n, *, jobs, effect=0.0, shared=False, outliers=0.0, measures=MEASURES):
    """Logarithms, (measures, launches): ``jobs`` jobs with an effect each, and launches of up to +50 %."""
    of_job = generator.normal(0, effect, (1 if shared else measures, jobs)) * np.ones((measures, n))
    slow = generator.random((measures, n)) < outliers
    slower = np.log1p(generator.uniform(0.1, 0.5, (measures, n)))
    return of_job + generator.normal(0, NOISE, (measures, n)) + slow * slower


def regressions(before, now, between=0.0):
    found = moderated(before, now, between).difference
    return (adjusted(found.p) < 0.05) & (found.value > LIMIT)


@pytest.mark.parametrize("n", LAUNCHES)
@pytest.mark.parametrize("outliers", [0, 0.03])
@pytest.mark.parametrize(("effect", "shared"), [(0.01, False), (0.02, False), (0.02, True)])
@pytest.mark.parametrize("is_one_job", [False, True])
def test_without_a_change_at_most_one_comparison_in_twenty_finds_one(n, outliers, effect, shared, is_one_job):
    generator = np.random.default_rng(n)
    options = {"jobs": 1 if is_one_job else n, "effect": effect, "shared": shared, "outliers": outliers}
    between = BETWEEN if is_one_job else 0.0
    false = [
        regressions(side(generator, n, **options), side(generator, n, **options), between).any()
        for _ in range(ROUNDS)
    ]
    assert np.mean(false) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / ROUNDS)  # twice the error of the estimate


def power(n, rounds=ROUNDS, **options):
    generator, found = np.random.default_rng(n), 0
    for _ in range(rounds):
        before, now = (side(generator, n, jobs=n, **options) for _ in range(2))
        now[0] += math.log(1.1)
        found += regressions(before, now)[0]
    return found / rounds


def test_one_slow_measure_of_twelve_is_found():
    assert power(2) >= 0.7
    assert power(3) >= 0.9
    assert power(3, effect=0.02, rounds=300) >= 0.8


def test_outliers_cost_little_power():
    assert power(3, outliers=0.03) >= 0.85
    assert power(5, outliers=0.03) >= 0.9


def test_without_a_difference_between_variances_all_is_pooled():
    generator = np.random.default_rng(0)
    before, now = (side(generator, 3, jobs=3, measures=500) for _ in range(2))
    found = moderated(before, now, 0.0).difference
    assert np.median(found.error) == pytest.approx(NOISE * math.sqrt(2 / 3), rel=0.1)
    assert np.median(found.freedom) > 30


def test_a_measure_that_varies_far_more_keeps_its_variance():
    generator = np.random.default_rng(1)
    before, now = (side(generator, 10, jobs=10) for _ in range(2))
    before[0] *= 20
    now[0] *= 20
    found = moderated(before, now, 0.0).difference
    alone = difference([before[0]], [now[0]])
    assert found.error[0] == pytest.approx(alone.error[0])
    assert found.freedom[0] == 18


def test_effects_that_all_measures_share_leave_one_variance():
    shared = np.random.default_rng(3).normal(0, NOISE, (2, 1, 3)) * np.ones((2, MEASURES, 3))
    found = moderated(shared[0], shared[1], 0.0).difference
    assert found.freedom == pytest.approx(np.full(MEASURES, 4))


def test_an_outlier_of_three_launches_is_counted_apart():
    generator = np.random.default_rng(4)
    before, now = (side(generator, 3, jobs=3) for _ in range(2))
    now[2, 1] += 0.3
    found = moderated(before, now, 0.0)
    assert [bool(group) for group in found.groups] == [False, False, True, *[False] * 9]
    assert found.groups[2].counts == (0, 1) and found.groups[2].few
    assert found.means[2, 1] == pytest.approx(np.delete(now[2], 1).mean())


@pytest.mark.parametrize("kind", [kind for kind in UNCHANGED if "noise 0.2 %" in kind or "three times" in kind])
@pytest.mark.parametrize("launches", [(3, 3), (6, 6), (10, 3)])
def test_states_and_unequal_variances_are_no_regression(kind, launches):
    assert share(UNCHANGED[kind], launches, 60, first=False) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 60)


@pytest.mark.parametrize("kind", [kind for kind in DRIFTING if "correlation 0.5" in kind])
def test_launches_of_one_job_that_drift_are_rarely_a_regression(kind):
    """Of measures that drift apart, 46 to 57 % of such comparisons would find one without their order."""
    assert share(DRIFTING[kind], (6, 6), 60, first=False) <= 0.1 + 2 * math.sqrt(0.1 * 0.9 / 60)


def test_the_stated_variation_between_jobs_counts_once_a_side():
    generator = np.random.default_rng(5)
    before, now = (side(generator, 3, jobs=1) for _ in range(2))
    found, without = (moderated(before, now, between).difference for between in (BETWEEN, 0.0))
    assert found.error**2 == pytest.approx(without.error**2 + 2 * BETWEEN**2)
    assert (found.freedom > without.freedom).all()


def test_one_launch_on_each_side_says_nothing():
    found = moderated(np.zeros((2, 1)), np.ones((2, 1)), BETWEEN).difference
    assert np.isnan(found.p).all()
    assert np.isnan(smallest_visible(found, LIMIT)).all()


@pytest.mark.slow
@pytest.mark.parametrize("n", LAUNCHES)
@pytest.mark.parametrize("comparisons", [1, 10])
def test_the_smallest_visible_change_is_found_four_times_in_five(n, comparisons):
    """Of a measure by itself: n launches know their own variance only."""
    generator = np.random.default_rng(n)
    rows = generator.normal(0, NOISE, (400, 2, 1, n))
    tests = [moderated(before, now, 0.0).difference for before, now in rows[:100]]
    stated = np.median([smallest_visible(one, LIMIT, comparisons)[0] for one in tests])
    tests = [moderated(before, now + stated, 0.0).difference for before, now in rows]
    share = np.mean([one.p[0] < 0.05 / comparisons and one.value[0] > LIMIT for one in tests])
    assert 0.7 < share < 0.9
