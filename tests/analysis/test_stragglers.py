from dataclasses import asdict

import pytest

from hpcdl.analysis.network.stragglers import slowed
from hpcdl.analysis.run.launches import launches
from hpcdl.fabric.faults import Straggler

SLOW = Straggler(rank=1, factor=5)
PAUSES = Straggler(rank=1, probability=0.25, seconds=0.04)
WITH = {**SLOW.fields, "settings": {"straggler": asdict(SLOW)}}
FREE = {"training": "asynchronous", "aggregation": "own", "common_clock": True}


def test_every_step_that_waits_is_as_slow_as_theory_says(hand):
    """8 of 10 ms are work, five times as long with the straggler: 2 + 5 x 8 ms."""
    hand.train([[10.0] * 30] * 4, compute=[8] * 4)
    hand.train([[42.0] * 30] * 4, compute=[8, 40, 8, 8], **WITH)
    (one,) = slowed(launches(hand.read()))
    assert one.ratio.value == pytest.approx(10 / 42)
    assert one.waiting == pytest.approx(10 / 42)
    assert one.free == pytest.approx((3 + 10 / 42) / 4)
    assert (one.without, one.having) == (pytest.approx(6400), pytest.approx(6400 * 10 / 42))


def test_workers_that_wait_for_nobody_keep_their_throughput(hand):
    hand.train([[10.0] * 420] * 4, compute=[10] * 4, **FREE)
    hand.train([[10.0] * 420, [50.0] * 84, *[[10.0] * 420] * 2], compute=[10, 50, 10, 10], **FREE, **WITH)
    (one,) = slowed(launches(hand.read()))
    assert one.ratio.value == pytest.approx(3.2 / 4, rel=1e-3)
    assert one.free == pytest.approx(3.2 / 4)
    assert one.waiting == pytest.approx(1 / 5)


def test_pauses_count_by_their_mean(hand):
    told = {**PAUSES.fields, "settings": {"straggler": asdict(PAUSES)}}
    hand.train([[10.0] * 42] * 2, compute=[10] * 2)
    hand.train([[10.0, 10.0, *[10.0, 10.0, 10.0, 50.0] * 10]] * 2, compute=[10] * 2, **told)
    (one,) = slowed(launches(hand.read()))
    assert one.ratio.value == pytest.approx(0.5)
    assert one.waiting == pytest.approx(0.5)


def test_cases_that_differ_in_more_are_not_compared(hand):
    hand.train([[10.0] * 30] * 4)
    hand.train([[42.0] * 30] * 4, learning_rate=0.5, **WITH)
    hand.train([[42.0] * 30] * 2, **WITH)
    assert slowed(launches(hand.read())) == []
