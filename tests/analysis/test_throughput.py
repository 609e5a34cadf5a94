"""Pace and staleness of training in which ranks take steps of their own."""

from dataclasses import replace

import numpy as np
import pytest

from hpcdl.analysis.run.launches import MAX_AGE, WINDOWS, launches, throughput_of
from hpcdl.analysis.run.scaling import records

FREE = {"training": "asynchronous(collect=1)", "aggregation": "own", "common_clock": True, "images": 16}


def test_all_images_of_the_span_by_its_length(hand):
    # in the time of one slow step, 40 ms, the three fast workers make four each: 13 shares of 16 images
    hand.train([[10.0] * 400, [10.0] * 400, [40.0] * 100, [10.0] * 400], **FREE)
    (one,) = records(launches(hand.read()))
    assert one.images_per_second == pytest.approx(13 * 16 / 0.040)
    assert one.step_seconds == pytest.approx(64 / one.images_per_second)
    assert one.step_seconds_low == pytest.approx(one.step_seconds_high)
    assert one.steps == 1300 // 4


def test_the_span_lies_between_the_last_to_be_warm_and_the_first_to_end(hand):
    """If one ends before another is warm, there is none."""
    hand.train([[1000.0, 10.0, *[10.0] * 50], [5.0, 5.0, *[20.0] * 200]], warmup_steps=2, **FREE)
    hand.train([[10.0] * 5, [1000.0] * 5], model="nin", **FREE)
    span = launches(hand.read())[0].throughput
    assert [moment - hand.begin for moment in (span.begin, span.end)] == [2_010_000_000, 2_510_000_000]
    one = records(launches(hand.read()))[1]
    assert (one.step_seconds, one.measured_steps) == (None, 0)


def test_a_server_takes_no_steps_and_is_there(hand):
    updates = {2: [(10**9 + 10**7 * n, n % 2, n, 1, 0.1) for n in range(100)]}
    hand.train([[10.0] * 100, [10.0] * 100, []], updates=updates, **FREE | {"global_batch": 32})
    (launch,) = launches(hand.read())
    assert launch.ranks_recorded == 3
    assert launch.images_per_second == pytest.approx(32 / 0.010)


def test_time_in_which_nobody_is_inside_a_step_is_left_out(hand):
    hand.train([[10.0] * 100] * 2, **FREE | {"global_batch": 32})
    (launch,) = launches(hand.read())
    steps = launch.case.steps.copy()
    for column in ("begin", "end"):
        steps[column][steps["step"] >= 50] += 10**9  # everybody looks at the test set for a second
    assert throughput_of(steps, 2, 32).seconds.mean() == pytest.approx(launch.seconds.mean())


def test_what_comes_every_few_steps_is_paid_for(hand):
    """A median over steps would not see the average that every fourth one takes."""
    times = [[10.0, 10.0, 10.0, 50.0] * 60] * 2
    method = {"training": "parameter_averaging(period=4)", "aggregation": "ring"}
    hand.train(times, **FREE | method | {"global_batch": 32, "warmup_steps": 0})
    (one,) = records(launches(hand.read()))
    assert one.step_seconds == pytest.approx(0.020)


def test_waiting_for_a_slow_rank_is_no_pace_of_the_fast_ones(hand):
    """Every eighth step all ranks meet; the fast one has taken seven of its steps before the slow one is warm."""
    method = {"training": "parameter_averaging(period=8)", "aggregation": "ring", "global_batch": 32}
    hand.train([[*[10.0] * 7, 250.0] * 2, [40.0] * 16], **FREE | method)
    (one,) = records(launches(hand.read()))
    assert one.step_seconds == pytest.approx(0.040)
    assert one.steps == 16


def test_there_are_as_many_windows_as_global_batches_up_to_a_limit(hand):
    for steps in (5, 12, 400):
        hand.train([[10.0] * (steps + 2)] * 4, steps=steps, **FREE)
    assert [len(one.seconds) for one in launches(hand.read())] == [5, 12, WINDOWS]
    assert [one.measured_steps for one in records(launches(hand.read()))] == [5, 12, 400]


def test_work_is_that_of_a_global_batch(hand):
    hand.train([[10.0] * 200, [20.0] * 100], compute=[5, 15], **FREE | {"global_batch": 32})
    (one,) = records(launches(hand.read()))
    # in 20 ms two shares of the first and one of the second: one and a half global batches
    assert one.step_seconds == pytest.approx(0.020 / 1.5)
    assert one.compute_seconds == pytest.approx(0.015 / 1.5)
    assert one.load_balance == pytest.approx((10 + 15) / 2 / 15)
    assert one.communication_efficiency == pytest.approx(15 / 20)


def test_the_base_is_synchronous_training_on_one_rank(hand):
    hand.train([[80.0] * 40])
    hand.train([[60.0] * 40], optimizer="adam")
    hand.train([[40.0] * 40] * 4, aggregation="none")
    hand.train([[50.0] * 80] * 4, **FREE)
    found = records(launches(hand.read()))[3]
    assert (found.base_ranks, found.base_step_seconds) == (1, pytest.approx(0.080))
    assert found.speedup == pytest.approx(80 / 50)
    assert found.exposed_communication_seconds is None  # a slowest rank of a step has no counterpart here


def served(hand, training, rows, ranks=4, **fields):
    """``rows``: (worker, version, staleness), applied one after the other on rank 0."""
    updates = {0: [(10**9 + 10**6 * n, *row, 0.1) for n, row in enumerate(rows)]}
    hand.train([[10.0] * 100] * ranks, training=training, aggregation="own", updates=updates, **fields)
    return hand


def test_mean_shares_and_workers_by_hand(hand):
    rows = [(0, 0, 0), (1, 1, 1), (2, 2, 2), (0, 3, 2), (1, 4, 2), (1, 5, 0)]
    (launch,) = launches(served(hand, "mine:served", rows, warmup_steps=0).read())
    found = launch.staleness
    assert found.mean == pytest.approx(7 / 6)
    assert found.shares == pytest.approx((2 / 6, 1 / 6, 3 / 6))
    assert found.workers == 3
    assert (found.collect, found.expected) == (None, None)
    launch.case.updates["staleness"] = np.full(6, 2**31 - 1)  # as a damaged record may have
    assert len(replace(launch).staleness.shares) == MAX_AGE + 1


@pytest.mark.parametrize(
    ("training", "collect", "expected"),
    [
        *((f"softsync(collect={collect})", collect, 3 / collect) for collect in (1, 2, 4)),
        ("downpour(overlap=True)", 1, 7.0),  # each worker has two gradients under way
        *((name, 1, None) for name in ("ssp(bound=3)", "m_synchronous(collect=1)")),
        *((f"downpour({seldom}=2)", 1, None) for seldom in ("n_fetch", "n_push")),
    ],
)
def test_what_is_expected_of_workers_that_wait_for_nobody_and_fetch_often(hand, training, collect, expected):
    served(hand, training, [(n % 4, n // collect, 3) for n in range(80)], warmup_steps=0)
    (one,) = records(launches(hand.read()))
    assert (one.workers, one.staleness_mean, one.staleness_expected) == (4, 3.0, expected)
    assert expected is None or one.gradients_per_update == collect


def test_the_mean_is_of_the_measured_span_and_the_largest_of_all(hand):
    rows = [(0, 0, 40), *[(n % 4, n, 3) for n in range(1, 80)]]  # the first while everybody warms up
    (one,) = records(launches(served(hand, "asynchronous", rows, common_clock=True).read()))
    assert (one.staleness_mean, one.staleness_max) == (3.0, 40)


def test_every_shard_counts_its_own_versions(hand):
    updates = {rank: [(10**9 + 10**6 * n, n % 2, n // 2, 0, 0.1) for n in range(20)] for rank in (2, 3)}
    hand.train([[10.0] * 9] * 2 + [[]] * 2, training="softsync(collect=2)", aggregation="own", updates=updates)
    (one,) = launches(hand.read())
    assert one.staleness.collect == 2.0


def test_synchronous_training_has_no_staleness_the_memory_of_its_largest_rank_and_the_last_consensus(hand):
    seen = [(4, 1.0, 0.4, 0.9, 0.5, 256, 3.0), (8, 2.0, 0.9, 0.5, 0.9, 512, 0.25)]
    hand.train([[10.0] * 9] * 2, memory=[400, 1200], evaluations=seen)
    (one,) = records(launches(hand.read()))
    assert (one.staleness_mean, one.staleness_max, one.workers) == (None, None, None)
    assert (one.memory_bytes_per_rank, one.consensus_distance) == (1200, 0.25)
