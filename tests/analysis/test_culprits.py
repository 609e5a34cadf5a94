"""Slow hosts among hosts that change from night to night; the larger figures are from history_figures.py."""

import numpy as np
import pytest
from contract.nights import slow_host

from hpcdl.analysis.culprits import culprits, evidence, shared_departures
from hpcdl.analysis.suspects import TRANSIENT


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_host_is_named_by_link_measurements(seed):
    slow, departures, _ = slow_host(np.random.default_rng(seed), runs=60, onset=10)
    found = culprits(evidence(departures, TRANSIENT), departures)
    first = 10 + np.flatnonzero(np.isfinite(departures[slow, 10:]))[0]
    assert [one.suspect for one in found] == [slow]
    assert found[0].first == first
    assert found[0].found - first < 10
    assert found[0].ended is None
    assert found[0].ratio == pytest.approx(1 / 0.85, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_host_is_named_by_the_times_of_cases(seed):
    slow, departures, times = slow_host(np.random.default_rng(seed), runs=60, onset=10)
    departures = np.where(np.isfinite(departures), shared_departures(times), np.nan)
    assert [one.suspect for one in culprits(evidence(departures), departures)] == [slow]


def test_none_is_named_where_none_is_slow():
    for seed in range(5):
        _, departures, times = slow_host(np.random.default_rng(seed), runs=60, onset=60)
        assert not culprits(evidence(departures, TRANSIENT), departures)
        shared = np.where(np.isfinite(departures), shared_departures(times), np.nan)
        assert not culprits(evidence(shared), shared)


def test_hosts_that_are_always_together_cannot_be_told_apart():
    rng = np.random.default_rng(3)
    times = rng.normal(0, 0.02, (5, 40))
    times[:, 20:] += 0.3
    departures = np.tile(shared_departures(times), (4, 1))
    assert not culprits(evidence(departures), departures)


def test_a_restored_host_is_cleared():
    rng = np.random.default_rng(4)
    departures = rng.normal(0, 0.02, (6, 60))
    departures[2, 20:40] += 0.3
    (found,) = culprits(evidence(departures, TRANSIENT), departures)
    assert (found.suspect, found.first) == (2, 20)
    assert 40 <= found.ended <= 45


def test_nothing_measured_names_none():
    assert not culprits(evidence(np.full((3, 20), np.nan)), np.full((3, 20), np.nan))
