"""Comparison of two sets of runs: verdicts, missing and failed cases, jobs, accepted regressions."""

import datetime as dt
from dataclasses import replace

import numpy as np
import pytest
from contract.archives import case, run

from hpcdl.analysis.over_time.regressions import Accepted, compare
from hpcdl.report import comparison as page

TODAY = dt.date(2026, 11, 22)
STEADY = np.array([1.00, 1.01, 0.99, 1.002, 0.998])


def runs(*launches, begin=0, **options):
    """One run per launch, whose case ``c`` took so long."""
    return [run(number, [case("c", seconds)], **options) for number, seconds in enumerate(launches, begin)]


def with_cases(*cases, **options):
    return [run(number, cases, **options) for number in range(3)]


def compared(baseline, candidate, accepted=(), between=0.0):
    return compare(baseline, candidate, 0.03, accepted, TODAY, between)


def only(comparison, name="c"):
    (change,) = (change for change in comparison.changes if change.case == name)
    return change


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, "unchanged"), (1.1, "regressed"), (0.9, "improved"), (1.025, "inconclusive"), (1.015, "unchanged")],
)
def test_verdicts(factor, verdict):
    comparison = compared(runs(*STEADY), runs(*factor * STEADY))
    change = only(comparison)
    assert comparison.verdict == change.verdict == verdict
    assert change.ratio == pytest.approx(factor)
    assert change.low < factor < change.high
    assert change.launches == (5, 5)
    for before, now in ((1, 5), (5, 1)) if factor in {1.0, 1.1} else ():  # the spread of the other side counts
        assert compared(runs(*STEADY[:before]), runs(*factor * STEADY[:now])).verdict == verdict


STATES = (1.000, 1.003, 0.998, 1.002, 1.080, 1.081), (1.001, 0.999, 1.079, 1.082, 1.080, 1.083)
TWELVE = tuple(np.exp(np.linspace(-0.01, 0.01, 12)))


@pytest.mark.parametrize(
    ("sides", "verdict", "reason"),
    [
        (STATES, "inconclusive", "bimodal: 4 of 6 launches take 1.08 times as long, in the baseline 2 of 6"),
        (STATES[::-1], "inconclusive", "bimodal: 2 of 6 launches take 1.08 times as long, in the baseline 4 of 6"),
        ((TWELVE, (*TWELVE[4:], *[1.5] * 4)), "regressed", "4 of 12 launches take 1.5 times as long, in the baseline none of 12"),
        ((TWELVE, (*TWELVE[3:], *[1.5] * 3)), "inconclusive", "3 of 12 launches take 1.5 times as long, in the baseline none of 12"),
        ((TWELVE, (*TWELVE[1:], 1.5)), "unchanged", "1 of 12 launches takes 1.5 times as long, in the baseline none of 12"),
    ],
)  # fmt: skip
def test_launches_apart_from_the_others_are_counted_on_both_sides(sides, verdict, reason):
    change = only(compared(*(runs(*side) for side in sides)))
    assert (change.verdict, change.reason) == (verdict, reason)


@pytest.mark.parametrize(
    ("between", "factor", "verdict"),
    [
        (0.02, 1.05, "inconclusive"),
        (0.02, 1.1, "regressed"),
        (0.0, 1.05, "regressed"),
        (0.02, 1.0, "inconclusive"),
    ],
)
def test_two_jobs_differ_by_the_stated_variation_and_several_show_it_themselves(between, factor, verdict):
    now = runs(*factor * STEADY, begin=9, job="b")
    comparison = compared(runs(*STEADY, job="a"), now, between=between)
    assert (comparison.verdict, comparison.between_jobs) == (verdict, between)
    several = compared(runs(*STEADY), runs(1.0, job="b"), between=between)
    assert (several.verdict, several.between_jobs) == ("unchanged", 0.0)


@pytest.mark.parametrize(("between", "verdict"), [(0.0, "regressed"), (0.02, "inconclusive")])
def test_slow_launches_of_a_job_count_beyond_the_variation_of_jobs(between, verdict):
    usual = np.exp(np.random.default_rng(0).permutation(np.linspace(-0.002, 0.002, 12)))
    slow = usual * np.random.default_rng(0).permutation([1.06] * 5 + [1.0] * 7)
    change = only(compared(runs(*usual, job="a"), runs(*slow, begin=20, job="b"), between=between))
    assert (change.verdict, change.by_share) == (verdict, not between)


A, B = case("a", 1.0), case("b", 1.0)


@pytest.mark.parametrize(
    ("candidate", "verdict", "reason"),
    [
        (with_cases(A), "missing", "no result (3 of 3 launches)"),
        ([*with_cases(A, B), run(9, [A], complete=False)], "missing", "no result (1 of 4 launches); the run was interrupted"),
        (with_cases(suite=""), "missing", "no result (3 of 3 launches)"),
        (with_cases(A, without_result=[("b", "needs a GPU")]), "failed", "needs a GPU (3 of 3 launches)"),
        (with_cases(A, case("b", 1.0, failure="broke")), "failed", "broke (3 of 3 launches)"),
        (with_cases(A, case("b", 1.0, settings='{"start": "window"}')), "missing", "its settings differ: start was default and is window"),
    ],
)  # fmt: skip
def test_a_case_without_a_result_fails_although_it_is_accepted(candidate, verdict, reason):
    comparison = compared(with_cases(A, B), candidate, [Accepted("*", 0.5, "x", TODAY)])
    assert (only(comparison, "b").verdict, only(comparison, "b").reason) == (verdict, reason)
    assert comparison.verdict == "regressed"


def test_disturbed_launches_are_left_out_and_excuse_no_missing_one():
    for slower in [1.0, 1.1]:
        loud = run(9, [], disturbed=["c"])
        comparison = compared([*runs(*STEADY), loud], [loud, *runs(*slower * STEADY)])
        assert comparison.verdict == only(comparison).verdict == ("regressed" if slower > 1.05 else "unchanged")
        assert only(comparison).launches == (5, 5)
    quiet, loud = [run(0, [A, B])], [run(0, [A], disturbed=["b"])]
    for sides, name in (((quiet, loud), "candidate"), ((loud, quiet), "baseline"), ((loud, loud), "baseline")):
        change = only(compared(*sides), "b")
        assert (change.verdict, change.reason) == ("inconclusive", f"disturbed in all launches of the {name}")
    assert only(compared(quiet, [*loud, run(1, [A])]), "b").verdict == "missing"
    nothing = [run(0, [], disturbed=["c"])]
    for side in (nothing, runs(1.0), [run(1, [])]):
        assert compared(nothing, side).verdict == "inconclusive"
        assert page.verdict(compared(nothing, side)).row.code == 3


def test_a_target_that_is_no_longer_reached_is_missing():
    before = with_cases(case("a", 1.0, measure="step_seconds", seconds_to_target=9.0))
    now = [*before[:2], run(7, [case("a", 1.0, measure="step_seconds")])]
    missing = next(change for change in compared(before, now).changes if change.verdict == "missing")
    assert (missing.measure, missing.reason) == ("seconds_to_target", "target not reached (1 of 3 launches)")
    assert [change.measure for change in compared(now, before).changes] == ["step_seconds"]


def test_new_cases_are_named_and_harmless_unless_they_fail():
    comparison = compared(with_cases(A), with_cases(A, B))
    assert [(change.case, change.verdict) for change in comparison.changes] == [("a", "unchanged"), ("b", "new")]
    assert comparison.verdict == "unchanged"
    assert compared(with_cases(A), with_cases(A, case("b", None, failure="x"))).verdict == "regressed"
    with pytest.raises(ValueError, match="runs/0000: the baseline cannot be compared: it has no measured case"):
        compared(with_cases(case("a", None, failure="x")), runs(1.0))


def test_runs_of_several_suites_are_compared_suite_by_suite():
    side = [*with_cases(A), *with_cases(case("a", 5.0, suite="t"), suite="t")]
    found = {(change.suite, change.verdict, change.launches) for change in compared(side, side).changes}
    assert found == {("nightly", "unchanged", (3, 3)), ("t", "unchanged", (3, 3))}


@pytest.mark.parametrize(
    ("noisy", "factor", "verdict"), [(1, 1.03, "unchanged"), (2, 1.03, "inconclusive"), (1, 1.3, "inconclusive")]
)
def test_half_of_the_measures_or_a_wide_one_inconclusive_is_inconclusive(noisy, factor, verdict):
    spreads = (1.0, factor, factor**0.5, 1 / factor, factor**-0.5)
    side = [
        run(launch, [case(f"c{number}", seconds * (spread if number < noisy else 1)) for number in range(4)])
        for launch, (seconds, spread) in enumerate(zip(STEADY, spreads, strict=True))
    ]
    comparison = compared(side, side)
    assert (comparison.verdict, len(comparison.undecided)) == (verdict, noisy)
    assert (comparison.undecided[0].largest > 1.06) == (factor == 1.3)


def test_slow_launches_that_may_be_a_regression_leave_the_whole_inconclusive():
    """Three of 12 launches of one measure are slow, and two of six; eleven other measures are unchanged."""

    def side(launches, slow):
        times = np.exp(np.linspace(-0.01, 0.01, launches).reshape(2, -1).T.ravel())
        factors = [1.5 if launch % 3 == 0 and launch < 3 * slow else 1 for launch in range(launches)]
        return [
            run(launch, [case("c0", t * factor), *(case(f"c{n}", t) for n in range(1, 12))])
            for launch, (t, factor) in enumerate(zip(times, factors, strict=True))
        ]

    comparison = compared(side(12, 3), side(6, 2))
    (change,) = comparison.undecided
    assert (comparison.verdict, change.case) == ("inconclusive", "c0")
    of_shares = 1.5 ** (0.7772 - 0.0549)  # exact bounds of 2 of 6 and 3 of 12
    assert change.largest == pytest.approx(max(change.high, of_shares), 0.01)
    assert "NOT DECIDED: c0 takes 3.4 % longer (" in page.verdict(comparison).sentence
    assert "2 of 6 launches take 1.49 times as long, in the baseline 3 of 12" in page.verdict(comparison).sentence


@pytest.mark.parametrize(("order", "drifts"), [(range(8), True), ([0, 4, 1, 5, 2, 6, 3, 7], False)])
def test_launches_of_one_job_that_drift_are_told_by_their_order(order, drifts):
    """The same values are a regression in any other order."""
    steps = np.exp(np.linspace(-0.06, 0.06, 8))[order]
    comparison = compared(runs(*steps, job="a"), runs(*1.07 * steps, begin=9, job="b"))
    assert (comparison.drift > 0.3) == drifts
    assert comparison.verdict == ("inconclusive" if drifts else "regressed")
    sentence = page.verdict(comparison).sentence
    assert ("Launches of one job may drift: start them in several jobs, both sides in turn." in sentence) == drifts
    several = compared(runs(*steps), runs(*1.07 * steps, begin=9))
    assert (several.verdict, several.drift) == (comparison.verdict, comparison.drift)
    assert (
        "Successive runs may resemble each other: start both sides in turn." in page.verdict(several).sentence
    ) == drifts


def test_sides_in_turn_are_compared_in_pairs_and_one_or_two_launches_apart_decide_nothing():
    """A trend that both sides share is no part of the difference of pairs."""
    trend = np.exp(np.linspace(0, 0.2, 4))
    before, now = (
        [run(2 * n + later, [case("c", t)]) for n, t in enumerate(times)]
        for later, times in enumerate((trend, trend * 1.1 * STEADY[:4]))
    )
    assert (compared(before, now[::-1]).paired, compared(before, now).verdict) == (True, "regressed")
    assert compared(before, [run(9, now[0].cases), *now[1:]]).verdict == "inconclusive"
    assert compared(before[:2], now[:2]).paired
    two = compared(runs(1.0, 1.001), runs(2.0, 2.001, begin=9))
    assert (two.verdict, only(two).low > 1.5) == ("inconclusive", True)
    assert "too few launches to see if successive ones resemble each other" in only(two).reason
    one = only(compared(runs(1.0), runs(2.0)))
    assert (one.verdict, one.reason) == ("inconclusive", "one launch on each side")
    assert one.ratio == pytest.approx(2.0) and np.isnan([one.p, one.smallest]).all()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [((5, 4), (5, 4)), ((6, 3), (1, 6)), ((2, 5), (3, 5)), ((8, 1), (4, 1))])
def test_without_a_change_jobs_that_differ_are_no_regression(shape):
    """Of launches as units 30 to 60 % would differ significantly."""
    generator, changes = np.random.default_rng(5), []

    def of_jobs(jobs, launches):
        made = []
        for job in range(jobs):
            shared = generator.normal(0, 0.02, 40)
            for _ in range(launches):
                times = np.exp(shared + generator.normal(0, 0.01, 40))
                made.append(run(len(made), [case(f"c{n}", t) for n, t in enumerate(times)], job=f"job {job}"))
        return made

    for _ in range(12):
        comparison = compared(*(of_jobs(*side) for side in shape))
        assert comparison.unit == ("launch" if shape == ((8, 1), (4, 1)) else "job")
        changes += comparison.changes
    assert sum(change.verdict == "regressed" for change in changes) / len(changes) < 0.05


def test_the_median_of_a_jobs_launches_counts():
    times = (1.0, 1.02, 1.5, 0.99, 1.01, 1.4, 1.0, 1.0, 1.6)
    before = [run(n, [case("c", t)], job=f"job {n // 3}") for n, t in enumerate(times)]
    comparison = compared(before, runs(1.0, 1.01, 0.99))
    assert (comparison.unit, comparison.jobs) == ("job", (3, 3))
    assert only(comparison).baseline == pytest.approx((1.02 * 1.01 * 1.0) ** (1 / 3))


def test_an_accepted_regression_does_not_count_until_it_expires_or_grows():
    later, slow = Accepted("c*", 0.5, "slower switch", dt.date(2026, 12, 31)), runs(*1.2 * STEADY)
    expired = replace(later, expires=TODAY - dt.timedelta(1))
    for accepted, verdict, reason in [
        ([later], "accepted", "accepted until 2026-12-31: slower switch"),
        ([replace(later, case="d*")], "regressed", ""),
        ([replace(later, expires=TODAY)], "accepted", "accepted until 2026-11-22: slower switch"),
        ([expired], "regressed", "accepted until 2026-11-21, which has passed"),
        ([expired, later], "accepted", "accepted until 2026-12-31: slower switch"),
        ([replace(later, change=0.1)], "regressed", "accepted only up to 10 %"),
        ([replace(later, change=0.17)], "accepted", "accepted until 2026-12-31: slower switch"),  # with min_effect
    ]:
        comparison = compared(runs(*STEADY), slow, accepted)
        assert comparison.verdict == ("unchanged" if verdict == "accepted" else "regressed")
        assert (only(comparison).verdict, only(comparison).reason) == (verdict, reason)
        assert comparison.expired == [entry for entry in accepted if entry is expired]
        assert comparison.unused == [entry for entry in accepted if entry.case == "d*"]
