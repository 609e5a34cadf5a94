"""A verdict names computing as the cause where it does not scale, and only there."""

import pytest

from hpcdl.report.run.render import render


def steps(ms):
    return [500.0] * 2 + [ms * (1 + 0.001 * (n % 5 - 2)) for n in range(30)]


def causes(run):
    return [line for line in render([run], "md").splitlines() if "computing alone" in line]


def test_computing_that_takes_as_long_on_more_ranks_is_the_cause(hand):
    hand.launches = 2
    for scheme in ("none", "ring", "tree"):
        hand.train([steps(20)], aggregation=scheme, compute=[19])
        hand.train([steps(18)] * 2, aggregation=scheme, compute=[16, 15])
    (line,) = causes(hand.read())
    assert line == ("- computing alone reaches 0.594 of linear at 2 ranks (16.0 ms a step, linear 9.50 ms)")


def test_communication_is_not_excused_where_computing_scales(hand):
    hand.launches = 2
    for ranks in (1, 2, 4):
        hand.train([steps(20 / ranks + 5 * (ranks - 1))] * ranks, compute=[19 / ranks] * ranks)
    run = hand.read()
    assert "0 of 1 method is near-linear at 4 ranks" in render([run], "md")
    assert not causes(run)


def test_ranks_that_share_cores_are_not_judged(hand):
    hand.launches = 2
    hand.train([steps(20)], compute=[19])
    hand.train([steps(20)] * 2, compute=[19] * 2)
    run = hand.read({"cpu": {"physical_cores": 1}, "ranks": [{"hostname": "n", "affinity": "0", "cores": 1}] * 2})
    assert "OVERSUBSCRIBED" in render([run], "md")
    assert not causes(run)


@pytest.mark.parametrize("strategies", [1, 2])
def test_strategies_are_judged_each_by_its_own_compute_time(hand, strategies):
    hand.launches = 2
    for strategy, compute in (("synchronous", 10), ("layerwise", 19))[:strategies]:
        hand.train([steps(20)], training=strategy, compute=[19])
        hand.train([steps(20)] * 2, training=strategy, compute=[compute] * 2)
    found = causes(hand.read())
    assert [line.startswith("- layerwise: computing alone") for line in found] == [True] * (strategies - 1)
