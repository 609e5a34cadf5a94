from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from hpcdl.analysis.run.launches import launches
from hpcdl.analysis.run.pooling import AmbiguousCaseError
from hpcdl.analysis.run.scaling import records
from hpcdl.analysis.statistics.judging import Side, judge


def steps(ms, count=10):
    """Two slow steps, then ``count`` of the same length."""
    return [1000.0] * 2 + [ms] * count


def recorded(hand):
    return records(launches(hand.read()))


def test_strong_scaling_by_hand(hand):
    hand.launches = 2
    hand.train([steps(80)])
    hand.train([steps(50), steps(40)])
    hand.train([steps(25)] * 4)
    one, two, four = recorded(hand)
    assert (one.speedup, one.efficiency, one.efficiency_low, one.efficiency_high) == (1, 1, 1, 1)
    assert two.step_seconds == pytest.approx(0.050)
    assert two.speedup == pytest.approx(1.6)
    assert [two.efficiency, two.efficiency_low, two.efficiency_high] == pytest.approx([0.8] * 3)
    assert four.speedup == pytest.approx(3.2)
    assert four.efficiency == pytest.approx(0.8)
    assert (four.base_ranks, four.base_aggregation) == (1, "ring")
    assert four.base_step_seconds == pytest.approx(0.080)
    assert four.images_per_second == pytest.approx(4 * 16 / 0.025)
    assert (four.steps, four.warmup_steps, four.measured_steps) == (12, 2, 20)
    assert (four.bytes_sent_per_rank, four.messages_per_rank) == (103, 3)


def test_weak_scaling_by_hand_is_what_a_batch_per_rank_implies(hand):
    for ranks, batch in ((1, 16), (4, 16), (1, None)):
        hand.train([steps(15 + 5 * ranks**0.5)] * ranks, scaling=None, global_batch=None, batch_per_rank=batch)
    _, four, neither = recorded(hand)
    assert (four.scaling, four.efficiency, four.speedup) == ("weak", pytest.approx(0.8), pytest.approx(3.2))
    assert (neither.scaling, neither.efficiency) == (None, None)


def test_a_step_takes_as_long_as_its_slowest_rank(hand):
    # each rank's median is 10 ms, but in every step one of them takes 30
    a = [10, 30, 10, 30, 10, 30, 10, 10, 30, 10]
    b = [30, 10, 30, 10, 30, 10, 30, 30, 10, 30]
    hand.train([a, b], warmup_steps=0)
    assert recorded(hand)[0].step_seconds == pytest.approx(0.030)


def test_an_interval_is_of_launches_or_of_the_steps_of_a_simulation(hand):
    """Of ten times order statistics of their median, of three Student's. Repetitions of one launch are no sample."""
    times = [float(ms) for ms in range(1, 11)]
    for ms in times:
        hand.train([steps(ms)], launch=int(ms), aggregation="tree")
    hand.train([[1000.0] * 2 + times], network="lan", jitter=0.1, settings={"jitter": 0.1})
    hand.train([[1000.0] * 2 + times])
    for launch, ms in enumerate((50, 60, 40)):
        hand.train([steps(ms)], model="nin", launch=launch, correct=launch != 1)
    several, simulated, single, three = recorded(hand)
    for one in (several, simulated):
        assert [one.step_seconds, one.step_seconds_low, one.step_seconds_high] == pytest.approx(
            [0.0055, 0.002, 0.009]
        )
    assert (single.step_seconds, single.step_seconds_low) == (pytest.approx(0.0055), None)
    assert (three.launches, three.measured_steps, three.correct) == (3, 30, False)
    logarithms = np.log([0.050, 0.060, 0.040])
    bounds = np.exp(scipy.stats.t.interval(0.95, 2, logarithms.mean(), scipy.stats.sem(logarithms)))
    assert [three.step_seconds, three.step_seconds_low, three.step_seconds_high] == pytest.approx([0.050, *bounds])


def test_one_rank_is_the_same_program_for_every_scheme(hand):
    """Seven one-rank cases of one launch do not show how launches vary."""
    times = {"tree": 70, "none": 80, "ring": 120, "a": 79, "b": 78, "c": 81, "d": 90}
    for scheme, ms in times.items():
        hand.train([steps(ms)], aggregation=scheme)
    hand.train([steps(50)] * 2, aggregation="ring")
    *single, two = recorded(hand)
    assert (two.base_aggregation, two.base_ranks, two.base_launches) == ("any", 1, 1)
    assert two.base_step_seconds == pytest.approx(0.080)
    assert two.efficiency == pytest.approx(0.8)
    assert (two.efficiency_low, two.efficiency_high, two.near_linear) == (None, None, None)  # one launch
    for one, ms in zip(single, times.values(), strict=True):
        assert one.step_seconds == pytest.approx(ms / 1000)  # its own
        assert (one.efficiency, one.efficiency_low, one.speedup) == (1, 1, 1)
        assert one.base_step_seconds == pytest.approx(0.080)


def test_near_linear_is_judged_over_launches_and_all_cases(hand):
    """Of five launches whose times vary by 2 %, on 2 ranks with these mean efficiencies."""
    means = (0.99, 0.91, 0.7)
    variation = np.exp(np.random.default_rng(1).normal(0, 0.02, (4, 5)))
    for launch in range(5):
        hand.train([steps(80 * variation[0, launch])], launch=launch, aggregation="scheme1")
        for number, mean in enumerate(means, 1):
            times = [steps(40 / mean * variation[number, launch])] * 2
            hand.train(times, launch=launch, aggregation=f"scheme{number}")
    base, *found = recorded(hand)
    assert [one.near_linear for one in found] == [True, None, False]
    times = [Side(dict(enumerate(one.launch_seconds))) for one in (base, *found)]
    halves = [Side({unit: 2 * time for unit, time in side.values.items()}) for side in times[1:]]
    (verdicts,) = judge([[times[0], *halves]], limit=0.9)
    assert [one.near_linear_p for one in found] == pytest.approx([verdict.p for verdict in verdicts])
    for one in found:
        assert one.base_launches == 5
        assert one.efficiency_low < one.efficiency < one.efficiency_high


def test_a_compressor_may_cost_something_on_one_rank(hand):
    hand.train([steps(80)])
    hand.train([steps(100)], compression="topk")
    hand.train([steps(50)] * 2)
    hand.train([steps(50)] * 2, compression="topk")
    hand.train([steps(50)] * 2, compression="onebit")
    found = recorded(hand)
    assert [one.base_step_seconds for one in found[2:]] == pytest.approx([0.080, 0.100, 0.080])


def test_without_one_rank_of_the_same_problem_the_smallest_scale_is_the_base(hand):
    hand.train([steps(20)] * 8)
    hand.train([steps(60)] * 2)
    hand.train([steps(30)] * 4)
    for other in (
        {"model": "nin"},
        {"global_batch": 128},
        {"settings": {"prefetch": 0}},
        {"error": "rank 1 is gone"},
    ):
        hand.train([steps(80)], **other)
    eight, two, four, *_, broken = recorded(hand)
    assert two.efficiency == 1.0
    assert four.efficiency == pytest.approx(1.0)
    assert eight.speedup == pytest.approx(3.0)
    assert eight.efficiency == pytest.approx(0.75)
    assert (eight.base_ranks, eight.base_step_seconds) == (2, pytest.approx(0.060))
    assert (broken.step_seconds, broken.error) == (None, "rank 1 is gone")


def test_exposed_communication_is_the_time_beyond_the_baseline(hand):
    hand.launches = 2
    hand.train([steps(50)] * 2)
    hand.train([steps(40)] * 2, aggregation="none")
    hand.train([steps(50)] * 4)
    hand.train([steps(90)])
    hand.train([steps(80)], aggregation="none")
    ring, none, four, one, _ = (
        [getattr(found, f"exposed_communication_seconds{bound}") for bound in ("", "_low", "_high")]
        for found in recorded(hand)
    )
    assert ring == pytest.approx([0.010] * 3)
    assert none == [0, 0, 0]
    assert four == [None] * 3
    assert one == [0, 0, 0]  # there is nobody to talk to


def test_cases_of_different_length_are_told_apart(hand):
    for planned in (12, 22):
        hand.train([steps(80, planned - 2)], steps=planned)
        hand.train([steps(50, 5)] * 2, steps=planned)  # stopped at its target
    found = recorded(hand)
    assert [one.steps for one in found] == [12, 7, 22, 7]
    assert [one.planned_steps for one in found] == [12, 12, 22, 22]
    assert found[3].base_launches == 1
    assert len({one.problem() for one in found}) == 2


def test_efficiency_split_by_hand(hand):
    """Input is that of the rank that waits longest."""
    hand.train([steps(50), steps(50)], compute=[40, 30], waiting=[2, 5])
    (one,) = recorded(hand)
    assert (one.compute_seconds, one.input_seconds) == (pytest.approx(0.040), pytest.approx(0.005))
    assert one.load_balance == pytest.approx(35 / 40)
    assert one.communication_efficiency == pytest.approx(0.8)


def test_targets(hand):
    """A target that one launch missed has no time."""
    seen = [(4, 1.0, 0.4, 0.9, 0.5, 256), (8, 2.0, 0.9, 0.5, 0.91, 512), (12, 3.0, 1.3, 0.4, 0.89, 768)]
    hand.train([steps(50)], evaluations=seen, target_accuracy=0.9, sent_bytes=9000)
    hand.train([steps(50)], evaluations=seen, target_accuracy=0.95, sent_bytes=9000)
    hand.train([steps(50)], evaluations=seen)
    for launch, accuracy in enumerate((0.93, 0.85)):
        last = [(12, 1, 0.5, 0.1, accuracy, 64)]
        hand.train([steps(50)], model="nin", launch=launch, target_accuracy=0.9, evaluations=last)
    reached, never, unset, missed = recorded(hand)
    assert reached.seconds_to_target == 0.9
    assert (reached.samples_to_target, reached.epochs_to_target) == (512, 2.0)
    assert (reached.sent_bytes, reached.bytes_to_target) == (9000, 6000)
    assert (reached.final_accuracy, reached.final_loss) == (0.89, 0.4)
    assert never.best_accuracy == 0.91
    for one in (never, unset, missed):
        assert one.seconds_to_target is one.samples_to_target is one.epochs_to_target is None
        assert one.bytes_to_target is None
        assert one.final_accuracy == pytest.approx(0.89)


def test_an_evaluation_is_at_the_time_of_the_rank_that_reached_it_last(hand):
    hand.train([steps(50)] * 2, evaluations=[(4, 1.0, 0.4, 0.9, 0.5, 256), (8, 2.0, 0.9, 0.5, 0.91, 512)])
    (launch,) = launches(hand.read())
    of_both = np.concatenate([launch.case.evaluations] * 2)
    of_both["rank"], of_both["training_seconds"] = [0, 0, 1, 1], [0.4, 0.9, 0.5, 0.8]
    launch = replace(launch, case=replace(launch.case, evaluations=of_both))
    assert launch.evaluations["training_seconds"].tolist() == [0.5, 0.9]


def test_losses_are_those_of_ranks_with_images_and_a_training_that_diverged_has_no_accuracy(hand):
    """A replay has no losses."""
    for kind in ("train", "train", "replay"):
        hand.train([steps(50)] * 2, kind=kind, launch=0)
    idle, diverged, replay = launches(hand.read())
    for launch, first, ranks in ((idle, 11, [1]), (diverged, 5, [0, 1]), (replay, 5, [0, 1])):
        rows = launch.case.steps
        rows["loss"][(rows["step"] >= first) & np.isin(rows["rank"], ranks)] = np.nan
    idle.case.steps["images"][-1] = 0
    assert (idle.diverged, idle.last_loss) == (None, 1.0)
    assert (diverged.diverged, replay.diverged) == ((5, 0), None)
    hand.parts.clear()
    hand.train([steps(50)], evaluations=[(4, 1.0, 0.4, np.nan, 0.1, 256)])
    (one,) = recorded(hand)
    assert (one.diverged_step, one.diverged_rank, one.final_accuracy, one.best_accuracy) == (4, 0, None, None)


def test_one_record_per_seed_and_its_own_base(hand):
    for seed, base in ((1, 80), (2, 120)):
        hand.train([steps(base)], seed=seed)
        hand.train([steps(50)] * 2, seed=seed)
    hand.train([steps(50)] * 2, seed=3)
    found = recorded(hand)
    assert [one.seed for one in found] == [1, 1, 2, 2, 3]
    assert found[1].efficiency == pytest.approx(0.8)
    assert found[3].efficiency == pytest.approx(1.2)
    assert found[4].efficiency == pytest.approx(1.0)  # no base of its seed: the median of the others


def test_cases_that_nothing_tells_apart(hand):
    hand.train([steps(50)], case="a")
    hand.train([steps(60)], case="b")
    with pytest.raises(AmbiguousCaseError, match="'a' and 'b'"):
        recorded(hand)


def test_too_few_steps(hand):
    hand.train([steps(50, count=3)])
    hand.train([steps(25, count=3)] * 2)
    hand.train([[50.0] * 2] * 4)
    one, two, warm = recorded(hand)
    assert (two.efficiency, two.efficiency_low) == (pytest.approx(1.0), None)
    assert one.step_seconds_low is None
    assert (warm.step_seconds, warm.efficiency) == (None, None)
    assert (warm.steps, warm.measured_steps) == (2, 0)


def test_collective_by_hand(hand):
    slow, fast = [1.0] * 98 + [5.0, 9.0], [0.5] * 100
    times = [[100.0] * 5 + slow, [100.0] * 5 + fast] * 2
    hand.case(
        times, kind="collective", collective="allreduce", message_bytes=4_000_000, correct=True, warmup_steps=5
    )
    (reduce,) = recorded(hand)
    assert reduce.time_p50_seconds == pytest.approx(0.001)
    assert reduce.time_p99_seconds == pytest.approx(0.005 + 0.01 * 0.004, rel=1e-3)
    assert reduce.time_max_seconds == pytest.approx(0.009)
    assert reduce.algbw_bytes_per_second == pytest.approx(4e9)
    assert reduce.busbw_bytes_per_second == pytest.approx(6e9)
    assert (reduce.correct, reduce.efficiency, reduce.step_seconds) == (True, None, None)
