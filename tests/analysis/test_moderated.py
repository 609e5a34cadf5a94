"""Tests that measures make together, on simulated truths: false findings, power, outliers, and stated power."""

import math

import numpy as np
import pytest
from analysis.comparison_figures import DRIFTING, UNCHANGED, changed, share, states

from hpcdl.analysis.statistics.differences import adjusted, difference, moderated, needed, smallest_visible

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


def sides(seed, n, jobs, measures=MEASURES):
    generator = np.random.default_rng(seed)
    return [side(generator, n, jobs=jobs, measures=measures) for _ in range(2)]


def regressions(before, now, between=0.0):
    differences = moderated(before, now, between).difference
    return (adjusted(differences.p) < 0.05) & (differences.value > LIMIT)


def most(share, rounds):
    """Return the largest measured share of a true one: twice the error of the estimate."""
    return share + 2 * math.sqrt(share * (1 - share) / rounds)


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
    assert np.mean(false) <= most(0.05, ROUNDS)


@pytest.mark.parametrize(
    ("n", "least", "rounds", "options"),
    [
        (2, 0.7, ROUNDS, {}),
        (3, 0.9, ROUNDS, {}),
        (3, 0.8, 300, {"effect": 0.02}),
        (3, 0.85, ROUNDS, {"outliers": 0.03}),
        (5, 0.9, ROUNDS, {"outliers": 0.03}),
    ],
)
def test_one_slow_measure_of_twelve_is_found_and_outliers_cost_little_power(n, least, rounds, options):
    generator, power = np.random.default_rng(n), 0
    for _ in range(rounds):
        before, now = (side(generator, n, jobs=n, **options) for _ in range(2))
        now[0] += math.log(1.1)
        power += regressions(before, now)[0] / rounds
    assert power >= least


def test_variances_are_pooled_but_for_one_that_is_far_larger_and_effects_that_all_share():
    pooled = moderated(*sides(0, 3, 3, measures=500), 0.0).difference
    assert np.median(pooled.error) == pytest.approx(NOISE * math.sqrt(2 / 3), rel=0.1)
    assert np.median(pooled.freedom) > 30
    before, now = sides(1, 10, 10)
    before[0] *= 20
    now[0] *= 20
    differences = moderated(before, now, 0.0).difference
    assert differences.error[0] == pytest.approx(difference([before[0]], [now[0]]).error[0])
    assert differences.freedom[0] == 18
    shared = np.random.default_rng(3).normal(0, NOISE, (2, 1, 3)) * np.ones((2, MEASURES, 3))
    assert moderated(*shared, 0.0).difference.freedom == pytest.approx(np.full(MEASURES, 4))


def test_an_outlier_of_three_launches_is_counted_apart():
    before, now = sides(4, 3, 3)
    now[2, 1] += 0.3
    result = moderated(before, now, 0.0)
    assert [row for row, group in enumerate(result.groups) if group] == [2]
    assert result.groups[2].counts == (0, 1) and result.groups[2].few
    assert result.means[2, 1] == pytest.approx(np.delete(now[2], 1).mean())


@pytest.mark.parametrize("kind", [kind for kind in UNCHANGED if "noise 0.2 %" in kind or "three times" in kind])
@pytest.mark.parametrize("launches", [(3, 3), (6, 6), (10, 3)])
def test_states_and_unequal_variances_are_no_regression(kind, launches):
    assert share(UNCHANGED[kind], launches, 60, first=False) <= most(0.05, 60)


APART = "one job, correlation 0.5 of measures, noise 2 %"


@pytest.mark.parametrize(
    ("kind", "n", "most_false"),
    [*((kind, 6, 0.1) for kind in DRIFTING if "correlation 0.5" in kind), (APART, 3, 0.1), (APART, 5, 0.05)],
)
def test_launches_that_resemble_the_one_before_are_rarely_a_regression(kind, n, most_false):
    """Of measures that drift apart, 44 to 57 % of such comparisons would find one without their order."""
    assert share(DRIFTING[kind], (n, n), 60, first=False) <= most(most_false, 60)
    if n < 6:  # a real one is found
        assert share(changed(states(0.0, deviation=NOISE), 1.1), (n, n), 60, first=True) >= 0.8


def test_as_many_launches_as_needed_are_unchanged_four_times_in_five():
    rows = np.random.default_rng(1).normal(0, NOISE, (2, MEASURES, 400))
    test = moderated(*rows, 0.0)
    n = int(np.median(needed(test.difference, test.counts, LIMIT)))
    bounds = [
        moderated(*side, 0.0).difference.bounds()
        for side in np.random.default_rng(2).normal(0, NOISE, (60, 2, MEASURES, n))
    ]
    assert 0.7 < np.mean([(low >= -LIMIT) & (high <= LIMIT) for low, high in bounds]) < 0.9


def test_the_stated_variation_between_jobs_counts_once_a_side():
    before, now = sides(5, 3, 1)
    stated, without = (moderated(before, now, between).difference for between in (BETWEEN, 0.0))
    assert stated.error**2 == pytest.approx(without.error**2 + 2 * BETWEEN**2)
    assert (stated.freedom > without.freedom).all()


@pytest.mark.slow
@pytest.mark.parametrize("n", LAUNCHES)
@pytest.mark.parametrize("comparisons", [1, 10])
def test_the_smallest_visible_change_is_found_four_times_in_five(n, comparisons):
    """Of a measure by itself: n launches know their own variance only."""
    rows = np.random.default_rng(n).normal(0, NOISE, (400, 2, 1, n))
    tests = [moderated(before, now, 0.0).difference for before, now in rows[:100]]
    stated = np.median([smallest_visible(test, LIMIT, comparisons)[0] for test in tests])
    tests = [moderated(before, now + stated, 0.0).difference for before, now in rows]
    power = np.mean([test.p[0] < 0.05 / comparisons and test.value[0] > LIMIT for test in tests])
    assert 0.7 < power < 0.9
    assert np.isnan(smallest_visible(moderated(*rows[0, :, :, :1], BETWEEN).difference, LIMIT)).all()
