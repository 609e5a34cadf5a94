"""Rounds without conflict, and slow hosts and links found where they were put."""

import numpy as np
import pytest

from hpcdl.analysis.links import Links, rounds


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 7, 8, 16, 17, 31])
def test_all_pairs_meet_once_and_nobody_twice_in_a_round(ranks):
    table = rounds(ranks, "all_pairs")
    assert len(table) == ranks - 1 + ranks % 2
    met = []
    for partners in table:
        for rank, other in enumerate(partners):
            if other is not None:
                assert partners[other] == rank != other
                met.append((rank, other))
    assert sorted(met) == [(i, j) for i in range(ranks) for j in range(ranks) if i != j]


def test_bisection_crosses_the_middle():
    (partners,) = rounds(6, "bisection")
    assert partners == [3, 4, 5, 0, 1, 2]


def measured(speeds):
    """Links whose speeds are given; the exchange of two is as fast as the slower one."""
    with np.errstate(divide="ignore"):
        seconds = 1e-3 / np.array(speeds, float)
    np.fill_diagonal(seconds, np.nan)
    return Links({"message_bytes": 1 << 20, "pattern": "all_pairs"}, ["h"] * len(seconds), seconds)


@pytest.mark.parametrize("ranks", [3, 4, 8, 13])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_a_slow_host_is_named_with_its_factor(ranks, share):
    random = np.random.default_rng(ranks)
    speed = np.ones(ranks)
    speed[2] = share
    noise = random.uniform(0.97, 1.03, (ranks, ranks))
    found = measured(np.minimum.outer(speed, speed) * noise * noise.T)
    assert [rank for rank, _ in found.slow_hosts()] == [2]
    assert found.slow_hosts()[0][1] == pytest.approx(share, rel=0.1)
    assert found.slow_links() == []


def test_a_slow_link_is_not_blamed_on_its_hosts():
    speed = np.ones((6, 6))
    speed[1, 4] = speed[4, 1] = 0.5
    found = measured(speed)
    assert found.slow_hosts() == []
    assert found.slow_links() == [(1, 4, pytest.approx(0.5))]


def test_noise_is_not_a_fault():
    random = np.random.default_rng(0)
    noise = random.uniform(0.93, 1.07, (8, 8))
    found = measured((noise + noise.T) / 2)
    assert found.slow_hosts() == found.slow_links() == []


def test_the_fastest_and_the_slowest_pair_and_every_ranks_share():
    speed = np.array([[1, 4, 2], [4, 1, 1], [2, 1, 1]])
    found = measured(speed)
    assert found.extremes() == [(0, 1, pytest.approx(0.25e-3)), (1, 2, pytest.approx(1e-3))]
    assert found.shares()[0] == (2, pytest.approx(1.5 / 4))
    assert [rank for rank, _ in found.slow_hosts()] == [2]
    assert measured(np.full((2, 2), np.nan)).extremes() == []
