"""Rounds without conflict, and slow hosts and links found where they were put."""

from dataclasses import replace

import numpy as np
import pytest

from hpcdl.analysis.network.links import Links, links
from hpcdl.analysis.network.nodes import over_launches
from hpcdl.analysis.run.record import Record
from hpcdl.fabric.pairs import rounds


def test_all_pairs_meet_once_and_nobody_twice_in_a_round():
    for ranks in [2, 3, 4, 5, 7, 8, 16, 17, 31]:
        table = rounds(ranks, "all_pairs")
        assert len(table) == ranks - 1 + ranks % 2
        met = []
        for partners in table:
            for rank, other in enumerate(partners):
                if other is not None:
                    assert partners[other] == rank != other
                    met.append((rank, other))
        assert sorted(met) == [(i, j) for i in range(ranks) for j in range(ranks) if i != j]


def test_a_record_of_more_ranks_than_exchanges_is_refused(hand):
    """The table of all pairs of 100,000 ranks would take 80 GB."""
    hand.case([[1.0] * 4] * 2, case="c", kind="pairwise", ranks=100_000, pattern="all_pairs", message_bytes=64)
    with pytest.raises(ValueError, match="c: 8 exchanges are too few for 100000 ranks"):
        links(hand.read())


def measured(speeds, hosts=None, noise=0.01):
    """Links whose speeds are given, five times; the exchange of two is as fast as the slower one."""
    random = np.random.default_rng(1)
    with np.errstate(divide="ignore"):
        seconds = 1e-3 / np.array(speeds, float)
    np.fill_diagonal(seconds, np.nan)
    drawn = noise * random.normal(size=(5, *seconds.shape))
    repeated = seconds * np.exp(drawn + drawn.transpose(0, 2, 1))
    hosts = hosts or [f"host{rank}" for rank in range(len(seconds))]
    return Links(Record(message_bytes=1 << 20, pattern="all_pairs"), hosts, repeated)


@pytest.mark.parametrize("ranks", [3, 4, 8, 13])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_a_slow_host_is_named_with_its_factor(ranks, share):
    random = np.random.default_rng(ranks)
    speed = np.ones(ranks)
    speed[2] = share
    noise = random.uniform(0.97, 1.03, (ranks, ranks))
    found = measured(np.minimum.outer(speed, speed) * noise * noise.T)
    assert [rank for rank, _ in found.slow_hosts()] == [2]
    assert found.slow_hosts()[0][1].value == pytest.approx(share, rel=0.1)
    assert found.slow_links() == []


def test_a_slow_link_is_not_blamed_on_its_hosts():
    speed = np.ones((6, 6))
    speed[1, 4] = speed[4, 1] = 0.5
    found = measured(speed)
    assert found.slow_hosts() == []
    assert found.slow_links() == [(1, 4, pytest.approx(0.5, rel=0.05))]


def test_what_was_slow_in_few_repetitions_or_scatters_is_not_named():
    """The median of host 2 is 0.8; repetitions reach from half to twice as fast."""
    links = measured(np.ones((4, 4)))
    links.repeated[:3, 1, 2] *= [1.02, 5, 5]
    links.repeated[:3, 2, 1] *= [1.02, 5, 5]
    links.repeated[3:, 1:3, 1:3] *= 1.3
    assert links.slow_links() == []
    speed = np.array([1, 1, 0.8, 1])
    assert measured(np.minimum.outer(speed, speed), noise=0.5).slow_hosts() == []


@pytest.mark.parametrize(("noise", "least"), [(0.001, 0.85), (0.05, 0.75), (0.1, 0.56)])
def test_each_host_and_link_slower_than_the_least_slowness_is_named(noise, least):
    links = measured(np.ones((6, 6)), noise=noise)
    assert links.least_slowness() == pytest.approx(least, abs=0.05)
    for host, share in links.shares():
        slower = links.repeated.copy()
        for at in (np.s_[:, host], np.s_[:, :, host]):
            slower[at] *= share.value / (0.96 * links.least_slowness())
        assert [slow for slow, _ in replace(links, repeated=slower).slow_hosts()] == [host]
    for one, other, share in links.link_shares():
        slower = links.repeated.copy()
        slower[:, [one, other], [other, one]] *= share.value / (0.96 * links.least_slowness())
        assert [pair[:2] for pair in replace(links, repeated=slower).slow_links()] == [(one, other)]
    assert replace(links, repeated=links.repeated[:1]).least_slowness() == 0


def test_launches_of_a_case_give_one_answer():
    """Three launches read 0.82, 0.80 and 0.76; a disturbed one read 0.3."""
    launches = []
    for share, cause in ((0.82, None), (0.8, None), (0.3, "load"), (0.76, None)):
        speed = np.ones(4)
        speed[1] = share
        links = measured(np.minimum.outer(speed, speed), noise=0.001)
        launches.append(Links(links.record, links.hosts, links.repeated, cause))
    (links,) = over_launches(launches)
    ((host, share),) = links.slow_hosts()
    assert (host, links.disturbed) == (1, None)
    assert share.value == pytest.approx(0.8, abs=0.01)
    assert share.low < 0.76 < 0.82 < share.high < 1
    assert over_launches(launches[2:3])[0].disturbed == "load"


def test_the_fastest_and_the_slowest_pair_and_every_ranks_share():
    speed = np.array([[1, 4, 2], [4, 1, 1], [2, 1, 1]])
    found = measured(speed, noise=0)
    assert found.extremes() == [(0, 1, pytest.approx(0.25e-3)), (1, 2, pytest.approx(1e-3))]
    assert found.shares()[0] == (2, pytest.approx((1.5 / 4,) * 3))
    assert [rank for rank, _ in found.slow_hosts()] == [2]
    assert measured(np.full((2, 2), np.nan)).extremes() == []


def test_ranks_of_fewer_than_three_hosts_have_no_slow_host():
    for ranks in [2, 4]:
        speed = np.ones(ranks)
        speed[1] = 0.41
        one, two = ["h"] * ranks, ["h"] * (ranks // 2) + ["g"] * (ranks // 2)
        for hosts in (one, two):
            found = measured(np.minimum.outer(speed, speed), hosts)
            assert found.shares() == found.slow_hosts() == found.slow_links() == []


def test_ranks_of_a_host_count_as_one():
    """Within a host exchanges are ten times as fast; host b's link has 0.6 of the others' speed."""
    hosts = ["a", "a", "b", "b", "c", "c"]
    speed = np.minimum.outer(*[np.array([1, 1, 0.6, 0.6, 1, 1])] * 2)
    speed[np.equal.outer(hosts, hosts)] = 10
    ((host, share),) = measured(speed, hosts).slow_hosts()
    assert measured(speed, hosts).names[host] == "b"
    assert share.low < 0.6 < share.high
