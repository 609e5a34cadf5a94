"""Comparison of two sets of runs: verdicts, missing and failed cases, jobs, accepted regressions."""

import datetime as dt
from dataclasses import replace

import numpy as np
import pytest

from hpcdl.analysis.over_time.regressions import Accepted, compare
from hpcdl.analysis.over_time.series import CaseSeries, RunSeries
from hpcdl.report import comparison as page

TODAY = dt.date(2026, 11, 22)


def case(name, seconds, measure="time_p50_seconds", failure="", settings="{}", suite="s", **more):
    values = {} if seconds is None else {measure: seconds}
    return CaseSeries(suite, name, settings, "collective", 2, 64, "k", {**values, **more}, failure, {}, {})


def run(cases, number=0, job="", complete=True, without_result=None, suite="s", disturbed=()):
    return RunSeries(
        path=f"runs/{number}",
        date=f"2026-11-{number % 28 + 1:02d}",
        job=job or f"runs/{number}-{id(cases)}",
        suite=suite,
        complete=complete,
        environment={},
        environments={},
        cases=tuple(cases),
        without_result=without_result or {},
        disturbed=dict.fromkeys(disturbed, "other processes"),
        simulated=0,
    )


def runs(*launches, **options):
    """One run per launch, whose case ``c`` took so long."""
    return [run([case("c", seconds)], number, **options) for number, seconds in enumerate(launches)]


def compared(baseline, candidate, accepted=(), min_effect=0.03):
    return compare(baseline, candidate, min_effect, accepted, TODAY)


def only(found):
    (change,) = found.changes
    return change


STEADY = (1.00, 1.01, 0.99, 1.002, 0.998)


def test_verdicts():
    for factor, verdict in [
        (1.0, "unchanged"),
        (1.1, "regressed"),
        (0.9, "improved"),
        (1.025, "inconclusive"),
        (1.015, "unchanged"),
    ]:
        found = compared(runs(*STEADY), runs(*(factor * one for one in STEADY)))
        assert found.verdict == only(found).verdict == verdict
        assert only(found).ratio == pytest.approx(factor)
        assert only(found).low < factor < only(found).high
        assert only(found).launches == (5, 5)


@pytest.mark.parametrize("sides", [(1, 5), (5, 1)])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "unchanged"), (1.1, "regressed")])
def test_one_launch_is_judged_by_the_spread_of_the_other_side(sides, factor, verdict):
    found = compared(runs(*STEADY[: sides[0]]), runs(*(factor * one for one in STEADY[: sides[1]])))
    assert found.verdict == verdict


STATES = (1.000, 1.003, 0.998, 1.002, 1.080, 1.081), (1.001, 0.999, 1.079, 1.082, 1.080, 1.083)
TWELVE = tuple(np.exp(np.linspace(-0.01, 0.01, 12)))


def test_launches_apart_from_the_others_are_counted_on_both_sides():
    for sides, verdict, reason in [
        (STATES, "inconclusive", "two states: 4 of 6 launches are 1.08 times slower, 2 of 6 of the baseline's"),
        (
            STATES[::-1],
            "inconclusive",
            "two states: 2 of 6 launches are 1.08 times slower, 4 of 6 of the baseline's",
        ),
        (
            (TWELVE, (*TWELVE[4:], *[1.5] * 4)),
            "regressed",
            "4 of 12 launches are 1.5 times slower, none of the baseline's",
        ),
        (
            (TWELVE, (*TWELVE[3:], *[1.5] * 3)),
            "inconclusive",
            "3 of 12 launches are 1.5 times slower, none of the baseline's",
        ),
        (
            (TWELVE, (*TWELVE[1:], 1.5)),
            "unchanged",
            "1 of 12 launches is 1.5 times slower, none of the baseline's",
        ),
    ]:
        change = only(compared(*(runs(*side) for side in sides)))
        assert (change.verdict, change.reason) == (verdict, reason)


def of_one_job(*launches, name):
    return runs(*launches, job=name)


def test_two_jobs_differ_by_the_stated_variation():
    for between, factor, verdict in [
        (0.02, 1.05, "inconclusive"),
        (0.02, 1.1, "regressed"),
        (0.0, 1.05, "regressed"),
        (0.02, 1.0, "inconclusive"),
    ]:
        before = of_one_job(*STEADY, name="a")
        now = [
            replace(one, path=f"now/{n}")
            for n, one in enumerate(of_one_job(*(factor * x for x in STEADY), name="b"))
        ]
        found = compare(before, now, 0.03, (), TODAY, between)
        assert found.verdict == verdict
        assert found.between_jobs == between


def test_several_jobs_show_their_variation_themselves():
    found = compare(runs(*STEADY), of_one_job(1.0, name="b"), 0.03, (), TODAY, 0.02)
    assert (found.verdict, found.between_jobs) == ("unchanged", 0.0)


def test_one_launch_on_each_side_is_inconclusive():
    found = compared(runs(1.0), runs(2.0))
    assert found.verdict == "inconclusive"
    assert only(found).reason == "one launch on each side"
    assert np.isnan(only(found).p)
    assert np.isfinite(only(found).ratio)


def with_cases(cases, **options):
    return [run(cases, number, **options) for number in range(3)]


def test_a_case_without_a_result_fails():
    for candidate, verdict, reason in [
        (with_cases([case("a", 1.0)]), "missing", "no result (3 of 3 launches)"),
        (
            [*with_cases([case("a", 1.0), case("b", 1.0)]), run([case("a", 1.0)], 9, complete=False)],
            "missing",
            "no result (1 of 4 launches); the run was interrupted",
        ),
        (with_cases([], suite=""), "missing", "no result (3 of 3 launches)"),
        (
            with_cases([case("a", 1.0)], without_result={"b": "needs a GPU"}),
            "failed",
            "needs a GPU (3 of 3 launches)",
        ),
        (with_cases([case("a", 1.0), case("b", 1.0, failure="broke")]), "failed", "broke (3 of 3 launches)"),
        (
            with_cases([case("a", 1.0), case("b", 1.0, settings='{"start": "window"}')]),
            "missing",
            "its settings differ: start was default and is window",
        ),
    ]:
        found = compared(with_cases([case("a", 1.0), case("b", 1.0)]), candidate)
        change = next(one for one in found.changes if one.case == "b")
        assert (change.verdict, change.reason) == (verdict, reason)
        assert found.verdict == "regressed"


def test_disturbed_launches_are_left_out():
    for slower in [1.0, 1.1]:
        loud = run([], disturbed=["c"])
        found = compared([*runs(*STEADY), loud], [loud, *runs(*(slower * one for one in STEADY))])
        assert found.verdict == only(found).verdict == ("regressed" if slower > 1.05 else "unchanged")
        assert only(found).launches == (5, 5)


def test_a_case_with_disturbed_launches_alone_is_inconclusive():
    quiet, loud = [run([case("a", 1.0), case("c", 1.0)])], [run([case("a", 1.0)], disturbed=["c"])]
    for sides, name in (((quiet, loud), "candidate"), ((loud, quiet), "baseline"), ((loud, loud), "baseline")):
        change = next(one for one in compared(*sides).changes if one.case == "c")
        assert (change.verdict, change.reason) == ("inconclusive", f"disturbed in all launches of the {name}")


def test_a_disturbed_launch_does_not_excuse_a_missing_one():
    quiet = [run([case("a", 1.0), case("c", 1.0)])]
    found = compared(quiet, [run([case("a", 1.0)], disturbed=["c"]), run([case("a", 1.0)])])
    assert next(one for one in found.changes if one.case == "c").verdict == "missing"


def test_a_target_that_is_no_longer_reached_is_missing():
    before = with_cases([case("a", 1.0, "step_seconds", seconds_to_target=9.0)])
    now = [*before[:2], run([case("a", 1.0, "step_seconds")], 7)]
    found = compared(before, now)
    missing = next(one for one in found.changes if one.verdict == "missing")
    assert (missing.measure, missing.reason) == ("seconds_to_target", "target not reached (1 of 3 launches)")
    swapped = compared(now, before)
    assert [one.measure for one in swapped.changes] == ["step_seconds"]


def test_new_cases_are_named_and_harmless_unless_they_fail():
    before = with_cases([case("a", 1.0)])
    found = compared(before, with_cases([case("a", 1.0), case("b", 1.0)]))
    assert [(one.case, one.verdict) for one in found.changes] == [("a", "unchanged"), ("b", "new")]
    assert found.verdict == "unchanged"
    assert compared(before, with_cases([case("a", 1.0), case("b", None, failure="x")])).verdict == "regressed"


def test_runs_of_several_suites_are_compared_suite_by_suite():
    one, other = [case("a", 1.0)], [case("a", 5.0, suite="t")]
    side = [*with_cases(one), *with_cases(other, suite="t")]
    found = compared(side, side)
    assert {(one.suite, one.verdict, one.launches) for one in found.changes} == {
        ("s", "unchanged", (3, 3)),
        ("t", "unchanged", (3, 3)),
    }


def test_half_of_the_measures_or_a_wide_one_inconclusive_is_inconclusive():
    def side(noisy, factor):
        spreads = (1.0, factor, factor**0.5, 1 / factor, factor**-0.5)
        return [
            run([case(f"c{number}", one * (spread if number < noisy else 1)) for number in range(4)], launch)
            for launch, (one, spread) in enumerate(zip(STEADY, spreads, strict=True))
        ]

    for noisy, factor, verdict in [(1, 1.03, "unchanged"), (2, 1.03, "inconclusive"), (1, 1.3, "inconclusive")]:
        found = compared(side(noisy, factor), side(noisy, factor))
        assert (found.verdict, len(found.undecided)) == (verdict, noisy)
        assert (found.undecided[0].largest > 1.06) == (factor == 1.3)


def test_slow_launches_that_may_be_a_regression_leave_the_whole_inconclusive():
    """Three of 12 launches of one measure are slow, and two of six; eleven other measures are unchanged."""

    def side(launches, slow):
        times = np.exp(np.linspace(-0.01, 0.01, launches))
        return [
            run([case(f"c{n}", t * (1.5 if launch < slow and not n else 1)) for n in range(12)], launch)
            for launch, t in enumerate(times)
        ]

    found = compared(side(12, 3), side(6, 2))
    change = found.undecided[0]
    assert (found.verdict, len(found.undecided), change.case) == ("inconclusive", 1, "c0")
    assert change.largest == pytest.approx(1.5 ** (0.7772 - 0.0549), 0.01)  # exact bounds of 2 of 6 and 3 of 12
    assert "c0: p50 is undecided" in page.verdict(found).sentence
    assert "2 of 6 launches are 1.48 times slower, 3 of 12 of the baseline's." in page.verdict(found).sentence


def test_launches_of_one_job_that_drift_are_told_by_their_order():
    """The same values are a regression in any other order."""
    steps = np.exp(np.linspace(-0.06, 0.06, 8))
    for order, drifts in ((range(8), True), ([0, 4, 1, 5, 2, 6, 3, 7], False)):
        before = [of_one_job(*steps[order], name="a"), of_one_job(*(1.07 * steps[order]), name="b")]
        before[1] = [replace(one, path=f"now/{n}") for n, one in enumerate(before[1])]
        found = compared(*before)
        assert (found.drift.correlation > 0.3, found.verdict) == (
            drifts,
            "inconclusive" if drifts else "regressed",
        )
        assert ("Launches of one job drift: start them in several jobs." in page.verdict(found).sentence) == drifts
        several = compared(runs(*steps[order]), runs(*(1.07 * steps[order])))
        assert several.drift.correlation == 0


def test_a_baseline_that_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="runs/0: the baseline cannot be compared: it has no measured case"):
        compared(with_cases([case("a", None, failure="x")]), runs(1.0))


def of_jobs(generator, jobs, launches, effect=0.02, noise=0.01, cases=1):
    found = []
    for job in range(jobs):
        shared = generator.normal(0, effect, cases)
        for _ in range(launches):
            times = np.exp(shared + generator.normal(0, noise, cases))
            found.append(
                run([case(f"c{n}", t) for n, t in enumerate(times)], len(found), f"job {job} {id(shared)}")
            )
    return found


@pytest.mark.slow
def test_without_a_change_jobs_that_differ_are_no_regression():
    """Of launches as units 30 to 60 % would differ significantly."""
    for shape in [((5, 4), (5, 4)), ((6, 3), (1, 6)), ((2, 5), (3, 5)), ((8, 1), (4, 1))]:
        generator, false, total = np.random.default_rng(5), 0, 0
        for _ in range(12):
            found = compared(*(of_jobs(generator, *side, cases=40) for side in shape))
            assert found.unit == ("launch" if shape == ((8, 1), (4, 1)) else "job")
            false += sum(one.verdict == "regressed" for one in found.changes)
            total += len(found.changes)
        assert false / total < 0.05


def test_the_median_of_a_jobs_launches_counts():
    before = [run([case("c", t)], n, f"job {n // 2}") for n, t in enumerate((1.0, 1.02, 0.99, 1.01, 1.0, 1.0))]
    found = compared(before, runs(1.0, 1.01, 0.99))
    assert (found.unit, found.jobs) == ("job", (3, 3))


ACCEPT = Accepted("c*", 0.5, "slower switch", dt.date(2026, 12, 31))


def test_an_accepted_regression_does_not_count():
    slow = runs(*(1.2 * one for one in STEADY))
    found = compared(runs(*STEADY), slow, [ACCEPT])
    assert found.verdict == "unchanged"
    assert (only(found).verdict, only(found).reason) == ("accepted", "accepted until 2026-12-31: slower switch")
    assert compared(runs(*STEADY), slow, [Accepted("d*", 0.5, "x", ACCEPT.expires)]).verdict == "regressed"


def test_an_expired_one_counts_again_and_is_named():
    slow = runs(*(1.2 * one for one in STEADY))
    last_day = Accepted("c", 0.5, "x", TODAY)
    assert compared(runs(*STEADY), slow, [last_day]).verdict == "unchanged"
    expired = Accepted("c", 0.5, "x", TODAY - dt.timedelta(1))
    found = compared(runs(*STEADY), slow, [expired])
    assert found.verdict == "regressed"
    assert found.expired == [expired]
    assert only(found).reason == "accepted until 2026-11-21, which has passed"
    assert compared(runs(*STEADY), slow, [expired, ACCEPT]).verdict == "unchanged"
    small = Accepted("c", 0.1, "x", TODAY)
    assert only(compared(runs(*STEADY), slow, [small])).reason == "accepted only up to +10 %"


def test_an_accepted_case_that_is_missing_fails():
    assert compared(with_cases([case("c", 1.0)]), with_cases([]), [ACCEPT]).verdict == "regressed"
