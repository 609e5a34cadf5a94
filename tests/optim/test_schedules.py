"""Schedules against their closed forms."""

import itertools

import pytest

from hpcdl.optim.parts.schedules import schedule


def test_polynomial():
    for power in [0, 0.5, 1, 2]:
        rate = schedule("polynomial", power=power)
        for step in range(9):
            assert rate(step, 9) == pytest.approx((1 - step / 9) ** power)


@pytest.mark.parametrize("total", [7, 10, 90, 99, 100, 1000])
@pytest.mark.parametrize("percent", [1, 7, 10, 29, 33, 57, 70, 99])
def test_a_milestone_acts_at_the_first_step_that_is_not_before_it(total, percent):
    listed = schedule("step", factor=0.5, at=[percent / 100])
    periodic = schedule("step", factor=0.5, every=percent / 100)
    for step in range(total):
        assert listed(step, total) == (0.5 if 100 * step >= percent * total else 1)
        assert periodic(step, total) == 0.5 ** (100 * step // (percent * total))


def test_goyals_warm_up_climbs_in_equal_increments_from_1_to_k():
    rate = schedule("step", at=[30 / 90, 60 / 90, 80 / 90], warmup=5 / 90, base_batch=256, global_batch=8192)
    total = 90 * 156
    climb = [rate(step, total) for step in range(5 * 156 + 1)]
    assert climb[0] == 1
    assert climb[-1] == 32
    assert {round(b - a, 9) for a, b in itertools.pairwise(climb)} == {round(31 / (5 * 156), 9)}
    assert rate(30 * 156 - 1, total) == 32
    assert rate(30 * 156, total) == pytest.approx(3.2)


def test_the_square_root_rule_scales_by_the_root_of_the_batch():
    rate = schedule("constant", base_batch=64, global_batch=1024, rule="square_root")
    assert rate(5, 100) == 4
    with pytest.raises(ValueError, match="rule must be one of linear, square_root, not 'cubic'"):
        schedule("constant", base_batch=64, global_batch=1024, rule="cubic")


def test_warm_up_then_polynomial_is_continuous_and_then_the_polynomial_itself():
    rate = schedule("polynomial", power=0.5, warmup=0.1, base_batch=32, global_batch=1024)
    assert rate(0, 100) == 1
    assert rate(5, 100) == pytest.approx(1 + (32 * 0.9**0.5 - 1) / 2)
    for step in range(10, 100):
        assert rate(step, 100) == pytest.approx(32 * (1 - step / 100) ** 0.5)


def test_warm_up_counted_in_steps_from_zero_or_longer_than_the_training():
    rate = schedule("constant", warmup_steps=4, warmup_from=0)
    assert [rate(step, 6) for step in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1]
    rate = schedule("polynomial", warmup_steps=10, warmup_from=0.5)
    assert [rate(step, 4) for step in range(4)] == pytest.approx([0.5, 0.45, 0.4, 0.35])


def test_messages_for_invalid_settings():
    for name, settings, message in [
        ("polinomial", {}, "unknown schedule 'polinomial'; did you mean 'polynomial'"),
        ("zzz", {}, "unknown schedule 'zzz'; valid: constant, step, polynomial"),
        ("polynomial", {"powr": 1}, "schedule polynomial: unknown setting 'powr'; did you mean 'power'"),
        ("constant", {"warm_up": 0.1}, "did you mean 'warmup'"),
        ("polynomial", {"power": -1}, "power must not be negative"),
        ("step", {}, "either at"),
        ("step", {"at": 0.5}, "at must be a list"),
        ("step", {"at": [0.5], "every": 0.1}, "either at"),
        ("step", {"at": [1.0]}, "at must be"),
        ("step", {"at": ["half"]}, "at must be"),
        ("step", {"every": 1}, "every must be"),
        ("step", {"every": 0.5, "factor": 0}, "factor must be positive"),
        ("constant", {"warmup": 1, "warmup_from": 0}, "warmup must be"),
        ("constant", {"warmup": 0.1, "warmup_steps": 3, "base_batch": 1, "global_batch": 2}, "not both"),
        ("constant", {"warmup": 0.1}, "needs base_batch"),
        ("constant", {"base_batch": 256}, "global_batch is not set"),
        ("constant", {"base_batch": 0, "global_batch": 1}, "base_batch must be positive"),
        ("constant", {"base_batch": 8, "global_batch": -1}, "global_batch must be positive"),
        ("constant", {"warmup_from": -1}, "warmup_from must not"),
        ("constant", {"warmup_steps": -1}, "warmup_steps must not"),
    ]:
        with pytest.raises(ValueError, match=message):
            schedule(name, **settings)
