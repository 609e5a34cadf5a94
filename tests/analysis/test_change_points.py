"""Change points on synthetic nights; the larger figures are from history_figures.py."""

import numpy as np
import pytest
from contract.nights import nights

from hpcdl.analysis.over_time.change_points import AFTER, BEFORE, WINDOW, Search, calibrate, change_points
from hpcdl.analysis.statistics.estimates import FREEDOM, usual_variance


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def places(changes):
    """Series, first run and run that made it significant of each change."""
    return [(change.series, change.first, change.found) for change in changes]


def steps(before, *lengths, size=0.2, noise=0.001):
    """A series at a level for some runs, ``size`` above it for the next, back at it, and so on."""
    logs = np.random.default_rng(2).normal(0, noise, before + sum(lengths))
    return logs[None] + np.repeat(size * (np.arange(1 + len(lengths)) % 2), [before, *lengths])


def test_a_shift_of_five_percent_is_found_within_twelve_runs(rng):
    logs = nights(rng, runs=52, kind="normal")
    logs[:10, 40:] += np.log(1.05)
    changes = {change.series: change for change in change_points(logs) if change.series < 10}
    assert len(changes) == 10
    for change in changes.values():
        assert change.ratio.low < change.ratio.value < change.ratio.high
    assert sum(abs(change.first - 40) <= 3 for change in changes.values()) >= 9
    assert sum(change.ratio.low < 1.05 < change.ratio.high for change in changes.values()) >= 7  # 95 % intervals


def test_runs_of_years_ago_change_no_finding(rng):
    """A search of the last runs alone finds the same; before, its time grew with the square of the runs."""
    logs = nights(rng, series=20, runs=WINDOW + 100, kind="normal")
    logs[:4, WINDOW + 60 :] += 0.2
    long, short = places(change_points(logs)), places(change_points(logs[:, 100:]))
    assert len(long) == 4
    assert long == [(series, first + 100, found + 100) for series, first, found in short]


@pytest.mark.parametrize(
    ("before", "after", "number"), [(BEFORE, AFTER, 1), (BEFORE - 1, AFTER, 1), (4, 6, 0), (BEFORE, AFTER - 1, 0)]
)
def test_a_change_needs_three_runs_that_agree_and_after_fewer_than_ten_is_an_unstable_start(before, after, number):
    changes = change_points(steps(before, after))
    assert places(changes) == [(0, before, before + after - 1)] * number
    for change in changes:
        assert change.unstable_start == (before < BEFORE) and change.open == (before >= BEFORE)
    repaired = change_points(steps(5, 4, 20))
    assert [(change.first, change.unstable_start) for change in repaired] == [(5, True), (9, False)]


def test_a_later_run_alters_no_earlier_finding(rng):
    logs = nights(rng, series=40, runs=70)
    logs[3, 30:] += 0.1
    logs[3, 45:] -= 0.1
    logs[rng.random(logs.shape) < 0.1] = np.nan
    whole = places(change_points(logs))
    assert len(whole) >= 2
    for end in (35, 50, 60):
        assert places(change_points(logs[:, :end])) == [change for change in whole if change[2] < end]


def test_spikes_missing_values_and_constant_series_are_no_change(rng):
    spikes = rng.normal(0, 0.01, (1, 60))
    spikes[0, [20, 30, 31, 45]] += 0.3
    assert not change_points(spikes)
    logs = np.full((4, 40), np.nan)
    logs[1] = 0.0
    logs[2, ::3] = 1.0
    logs[3, 20:] = 0.0
    assert not change_points(logs)
    logs[1, 30:] = 0.1
    assert places(change_points(logs)) == [(1, 30, 32)]


def test_the_usual_variance_is_that_of_alike_series(rng):
    variance, freedom = usual_variance(rng.normal(0, 0.03, (200, 40)))
    assert variance == pytest.approx(0.03**2, rel=0.1)
    unlike = rng.normal(0, 1, (200, 40)) * np.exp(rng.normal(0, 1, (200, 1)))
    assert usual_variance(unlike).freedom < 5 < freedom
    assert usual_variance(rng.normal(0, 1, (5, 40))).freedom == 0
    assert usual_variance(rng.normal(0, 1, (3000, 6))).freedom == FREEDOM


def test_a_slow_drift_is_a_series_of_steps(rng):
    logs = rng.normal(0, 0.02, (2, 200))
    logs[0] += np.linspace(0, 0.25, 200)
    changes = change_points(logs)
    assert {change.series for change in changes} == {0}
    assert all(change.ratio.value > 1 for change in changes)


NOISE = [("AR .3", 2), ("AR .6", 5), ("t3", 2), ("wandering", 2), ("few values", 2), ("random states", 10)]


@pytest.mark.parametrize(
    ("kind", "most"), [("outliers", 1), *(pytest.param(*row, marks=pytest.mark.slow) for row in NOISE)]
)
def test_noise_is_no_change(rng, kind, most):
    """Independent runs, a normal distribution and one level taken for granted give 15 to 100 in 100 nights."""
    assert len({change.found for change in change_points(nights(rng, kind=kind))}) <= most


def test_a_long_archive_without_a_change_has_no_finding():
    """The first values of the window are no start of a series."""
    assert not change_points(nights(np.random.default_rng(3), series=60, runs=400))


@pytest.mark.parametrize("repaired", [12, 60])
def test_a_regression_that_returns_is_open_from_its_own_date_on(repaired):
    """Its first time is repaired. Only a level of the first runs is one of two states."""
    again = 52 + repaired
    logs = nights(np.random.default_rng(4), series=3, runs=again + 100, kind="normal")
    logs[0, 40:52] += np.log(2)
    logs[0, again:] += np.log(2)
    for end in (again + AFTER, again + 20, again + 40, None):
        search = Search(logs[:, :end])
        assert [change.first for change in search.changes if change.open] == [again] and not search.muted


@pytest.mark.parametrize("seed", range(3))
def test_a_step_of_a_series_with_two_states_is_open(seed):
    rng = np.random.default_rng(seed)
    logs = nights(rng, series=4, runs=160, kind="normal")
    logs[0] = nights(rng, series=1, runs=160, kind="two states")[0]
    logs[0, 100:] += np.log(1.3)
    assert any(change.open and abs(change.first - 100) <= 2 for change in change_points(logs))


def test_a_repair_of_most_series_after_ten_nights_is_found(rng):
    """Half of the effects known by then are those of the change; they must not hide the repair as an effect."""
    logs = nights(rng, series=60, runs=90, kind="normal") / 10
    logs[:40, 56:66] += np.log(1.05)
    expected = {(row, run) for row in range(40) for run in (56, 66)}
    assert {(change.series, change.first) for change in change_points(logs)} == expected


@pytest.mark.parametrize("seed", range(3))
def test_large_changes_are_found_by_their_third_run(seed):
    """The variance before a regression counts for its repair, else four values hardly know their own.

    A lag-1 correlation and an empirical null, both inflated by the step itself, hide that of a wandering series.
    """
    logs = nights(np.random.default_rng(seed), series=3, runs=48, kind="normal")
    logs[0, 40:44] += np.log(1.2)
    assert places(change_points(logs)) == [(0, 40, 42), (0, 44, 46)]
    logs = nights(np.random.default_rng(seed), series=1, runs=60, kind="wandering")
    logs[0, 50:] += np.log(1.95)
    assert places(change_points(logs)) == [(0, 50, 52)]


def test_two_states_of_the_first_runs_are_muted_until_one_lasts_twice_as_long_as_any_before():
    logs = steps(20, 20, 20, 20, 20, 20, size=0.1, noise=0.01)
    search = Search(logs)
    assert [(change.first, change.returned) for change in search.changes] == [(20, False), (40, True)]
    assert [(change.first, change.muted) for change in search.muted] == [(100, True)]
    assert not any(change.open for change in change_points(logs[:, :70]) + search.changes)
    third, longer = logs.copy(), steps(20, 20, 20, 60, size=0.1, noise=0.01)
    third[0, 90:] = 0.5 + np.resize(logs[0, :20], 30)
    assert [change.first for change in change_points(third) if change.open] == [90]
    for nights_of_it, found in ((40, []), (41, [(60, 100)])):
        changes = change_points(longer[:, : 60 + nights_of_it])
        assert [(change.first, change.found) for change in changes if change.open] == found


def test_a_tick_of_a_timer_is_no_change_and_two_ticks_are():
    """Where a series' own times were all equal, those of the others have the tick."""
    ticks = np.round(np.random.default_rng(5).normal(20, 0.6, (8, 40)))
    ticks[0] = np.repeat([9, 8, 9], [12, 12, 16])
    ticks[1] = np.repeat([9, 11], [20, 20])
    assert places(change_points(np.log(ticks))) == [(1, 20, 22)]


def test_series_that_all_change_between_two_states_wander(rng):
    """A step counts by those of the other series: else there are findings in 37 nights."""
    states = (rng.random((60, 1)) < 0.5) ^ (np.cumsum(rng.random((60, 100)) < 0.1, axis=1) % 2 == 1)
    search = Search(0.1 * states + rng.normal(0, 0.01, states.shape) + rng.normal(0, 0.01, 100))
    assert search.drifts and len({change.found for change in search.changes}) <= 10


def test_a_regression_of_a_series_that_ended_is_open_no_more():
    logs = np.random.default_rng(2).normal(0, 0.01, (2, 50))
    logs[0, 15:] += 0.2
    logs[0, 25:] = np.nan
    assert [change.open for change in change_points(logs[:, :30])] == [True]
    assert [change.open for change in change_points(logs)] == [False]


def test_a_step_at_a_new_environment_is_found_by_its_third_run():
    logs = np.full((2, 20), np.nan)
    noise = np.random.default_rng(2).normal(0, 0.01, 20)
    logs[0, :15], logs[1, 15:] = noise[:15], noise[15:] + 0.26
    assert not change_points(logs)
    (change,) = Search(logs, {1: 0}).changes
    assert places([change]) == [(1, 15, 17)]
    assert change.ratio.value == pytest.approx(1.3, rel=0.02)


def test_calibration_counts_false_alarms(rng):
    logs = nights(rng, series=30, runs=60)
    logs[0, 30:] += 0.2
    assert calibrate(logs, change_points(logs), rounds=4).regressed <= 1
