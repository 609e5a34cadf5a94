"""One rule for two sides: pairs, families, several comparisons, exact and diverged sides."""

import math

import numpy as np
import pytest
from scipy import stats

from hpcdl.analysis.statistics.judging import Side, compare, judge

LAUNCHES = {"a": [20, 21, 22], "b": [25, 26, 26]}


def side(values, unit="launch", first=0, **known):
    return Side(dict(enumerate(map(float, values), first)), unit, **known)


def test_two_sides_are_paired_from_three_launches_on():
    """SciPy's paired test, and Welch's of two launches, or of launches of other jobs."""
    a, b = (np.log(LAUNCHES[name]) for name in "ab")
    ((pair,),) = judge([[side(LAUNCHES["a"]), side(LAUNCHES["b"])]])
    expected = stats.ttest_rel(a, b)
    assert pair.size == pytest.approx((21 / 26, *np.exp(expected.confidence_interval())))
    assert pair.p == pytest.approx(expected.pvalue) and pair.word == "less"
    for count, first in ((2, 0), (3, 3)):
        welch = stats.ttest_ind(a[:count], b[:count], equal_var=False)
        ((pair,),) = judge([[side(LAUNCHES["a"][:count]), side(LAUNCHES["b"][:count], first=first)]])
        assert pair.p == pytest.approx(welch.pvalue)
        assert pair.size[1:] == pytest.approx(tuple(np.exp(welch.confidence_interval())))


def test_seeds_are_always_paired_and_the_level_is_that_of_the_interval_and_of_the_verdict():
    three = [10, 10.2, 10.4], [10.5, 10.6, 11.0]
    for sides, level, word in (
        (([0.90, 0.92], [0.80, 0.83]), 0.95, "more"),
        (three, 0.95, "less"),
        (three, 0.99, "open"),
    ):
        ((one,),) = judge([[side(values, "seed") for values in sides]], quotient=False, level=level)
        bounds = stats.ttest_rel(*sides).confidence_interval(level)
        assert one.size == pytest.approx((np.subtract(*sides).mean(), *bounds)) and one.word == word


def test_a_family_lends_its_variance_but_never_takes_any():
    """Two pairs that happen to agree are no proof: the other sides show how launches vary."""
    quiet, noisy = [[10, 10, 10], [11, 11, 11]], [[12, 14, 11], [13, 11, 15], [10, 13, 12]]
    ((alone,),) = judge([[side(times) for times in quiet]])
    assert alone.word == "less"
    ((among, *_),) = judge([[side(times) for times in (*quiet, *noisy)]])
    assert among.word == "open" and among.reason == "chance"
    lone, disturbed = side([30]), side([10, 90, 20], disturbed=True)
    ((same, *_),) = judge([[*map(side, quiet), *map(side, noisy), lone, disturbed]])
    assert same.alone == among.alone  # neither shows how launches vary
    wild = [side([10, 30, 5]), side([20, 9, 40])]
    error = float(compare(*wild).test.error[0])
    ((among, *_),) = judge([[*wild, side([10, 10, 10]), side([9, 9, 9])]])
    t = stats.t.ppf(0.975, 2 + 4)  # four degrees of freedom of the family, the error of its own
    assert np.log(among.alone.high / among.alone.low) == pytest.approx(2 * t * error)


@pytest.mark.parametrize("number", [1, 8])
def test_an_interval_excludes_the_limit_if_and_only_if_the_comparison_is_decided(number):
    random = np.random.default_rng(number)
    effects = random.normal(0, 0.03, (number, 5))
    families = [
        [side(np.exp(effect + 0.02 * random.normal(size=4))) for effect in effects[n]] for n in range(number)
    ]
    judged = [one for some in judge(families) for one in some]
    p = stats.false_discovery_control([one.p for one in judged])
    assert any(one.word == "open" for one in judged) and len(p) == 4 * number
    for one in judged:
        assert (one.size.low > 1 or one.size.high < 1) == (one.word != "open") == (one.p < 0.05)


def test_the_choice_of_the_best_counts_all_pairs_of_its_family():
    family = [
        side(times) for times in ([10, 10.2, 10.1], [10.4, 10.5, 10.6], [10.3, 10.6, 10.7], [10.5, 10.3, 10.6])
    ]
    stated, chosen = judge([family])[0], judge([family], chosen=True)[0]
    assert all(one.p < other.p for one, other in zip(stated, chosen, strict=True))
    assert judge([family[:2]]) == judge([family[:2]], chosen=True)


@pytest.mark.parametrize(
    "first, other, options, word",
    [
        (10.0, 11.0, {}, "less"),
        (10.0, 10.05, {}, "less"),
        (10.0, 10.05, {"tolerance": 0.01}, "equal"),
        (10.0, 10.0, {}, "equal"),
        (11.0, 10.0, {"limit": 1.2}, "less"),
        (0.5, 0.4, {"quotient": False, "limit": 0.05}, "more"),
    ],
)
def test_exact_values_need_no_test(first, other, options, word):
    ((one,),) = judge([[side([first], exact=True), side([other], exact=True)]], **options)
    assert (one.word, one.reason) == (word, "")
    assert one.size.low == one.size.high == one.size.value


def test_an_exact_side_is_the_same_in_every_launch_of_the_other():
    ((one,),) = judge([[side([11.0, 11.1, 10.9]), side([10.0], exact=True)]])
    assert one.word == "more"
    assert one.size[1:] == pytest.approx(
        tuple(np.exp(stats.ttest_1samp(np.log([1.1, 1.11, 1.09]), 0).confidence_interval()))
    )


@pytest.mark.parametrize(
    "values, known, reason",
    [
        ([30.0], {}, "one launch"),
        ([30.0], {"unit": "seed"}, "one seed"),
        ([30.0, 30.1, 30.2], {"disturbed": True}, "disturbed"),
        ([], {}, "unknown"),
        ([0.0, 1.0, 2.0], {}, "unknown"),
    ],
)
def test_nothing_is_decided_without_units(values, known, reason):
    unit = known.get("unit", "launch")
    ((one,),) = judge([[side([10.0, 10.1, 10.2], unit), side(values, **known)]])
    assert (one.word, one.reason) == ("open", reason)


@pytest.mark.parametrize(
    ("diverged", "seeds", "word"), [(5, 5, "less"), (4, 4, "open"), (9, 10, "less"), (8, 10, "open")]
)
def test_seeds_vote_if_one_has_diverged(diverged, seeds, word):
    """A diverged seed is infinitely bad; both diverged: no vote."""
    first = side([-math.inf] * diverged + [0.9] * (seeds - diverged), "seed")
    other = side([0.8] * seeds, "seed")
    ((one,),) = judge([[first, other]], quotient=False)
    assert (one.word, one.votes) == (word, f"{diverged} of {seeds}")
    ((both,),) = judge([[first, first]], quotient=False)
    assert both.word == "open"


def test_the_interval_of_the_means_contains_the_quotient_of_medians():
    """One slow launch moves the mean, not the median."""
    _, low, high = compare(side([10, 10, 10, 30]), side([10, 10, 10, 10])).interval()
    assert low <= 1.0 <= high


def test_shared_noise_does_not_hide_a_difference_and_equal_sides_are_not_told_apart():
    random = np.random.default_rng(5)
    found = false = 0
    for _ in range(200):
        shared = 0.05 * random.normal(size=5)
        draw = lambda effect=0.0, shared=shared: side(np.exp(effect + shared + 0.01 * random.normal(size=5)))
        equal = sorted((draw() for _ in range(6)), key=lambda one: one.middle)
        false += any(one.word != "open" for one in judge([equal], chosen=True)[0])
        found += judge([[draw(), draw(0.05)]])[0][0].word == "less"
    assert found > 190 and false <= 14
