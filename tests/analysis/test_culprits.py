"""Slow hosts among hosts that change from night to night; the larger figures are from history_figures.py."""

from itertools import product

import numpy as np
import pytest
from contract.nights import slow_hosts

from hpcdl.analysis.over_time.suspects import TRANSIENT, culprits, evidence, shared_departures


def by_links(departures):
    return culprits(evidence(departures, TRANSIENT), departures)


def by_times(departures, times):
    shared = np.where(np.isfinite(departures), shared_departures(times), np.nan)
    return culprits(evidence(shared, lasting=False), shared, shared=True)


@pytest.mark.parametrize("seed", range(2))
def test_a_slow_host_is_named_by_link_measurements(seed):
    (slow,), departures, _ = slow_hosts(np.random.default_rng(seed), runs=60, onset=10)
    (found,) = by_links(departures)
    first = 10 + np.flatnonzero(np.isfinite(departures[slow, 10:]))[0]
    assert (found.suspect, found.first, found.ended) == (slow, first, None)
    assert found.found - first < 10
    assert found.ratio == pytest.approx(1 / 0.85, rel=0.05)


@pytest.mark.parametrize("seed", range(2))
def test_a_slow_host_is_named_by_the_times_of_cases(seed):
    slow, departures, times = slow_hosts(np.random.default_rng(seed), runs=60, onset=10)
    assert {one.suspect for one in by_times(departures, times)} == slow


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("slow", [2, range(8)])
def test_several_slow_hosts_are_named_by_link_measurements(seed, slow):
    slow, departures, _ = slow_hosts(np.random.default_rng(seed), slow, runs=70, onset=10)
    assert {one.suspect for one in by_links(departures)} == slow


def test_none_is_named_where_none_is_slow():
    for seed, spread in product(range(2), (0.0, 0.03)):
        _, departures, times = slow_hosts(np.random.default_rng(seed), 0, runs=60, onset=60, spread=spread)
        assert not by_links(departures)
        assert not by_times(departures, times) or spread


def test_hosts_that_are_always_together_cannot_be_told_apart():
    rng = np.random.default_rng(3)
    times = rng.normal(0, 0.02, (5, 40))
    times[:, 20:] += 0.3
    departures = np.tile(shared_departures(times), (4, 1))
    assert not culprits(evidence(departures, lasting=False), departures, shared=True)


def test_a_restored_host_is_cleared():
    rng = np.random.default_rng(4)
    departures = rng.normal(0, 0.02, (6, 60))
    departures[2, 20:40] += 0.3
    (found,) = culprits(evidence(departures, TRANSIENT), departures)
    assert (found.suspect, found.first) == (2, 20)
    assert 40 <= found.ended <= 45


def test_nothing_measured_names_none():
    assert not culprits(evidence(np.full((3, 20), np.nan)), np.full((3, 20), np.nan))
