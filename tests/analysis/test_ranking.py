import math

import numpy as np
import pytest

from hpcdl.analysis.run.launches import launches
from hpcdl.analysis.run.ranking import fields_of, winners


def curve(*points):
    """(seconds, epoch, accuracy)"""
    return [(10 * n, epoch, seconds, 1.0, accuracy, 1) for n, (seconds, epoch, accuracy) in enumerate(points, 1)]


def test_four_winners(hand):
    quick = curve((1, 1, 0.50), (2, 2, 0.80), (3, 3, 0.81))
    frugal = curve((4, 1, 0.70), (8, 2, 0.85))
    thorough = curve((3, 2, 0.60), (20, 20, 0.99))
    hand.train([[10.0] * 10] * 2, aggregation="quick", evaluations=quick)
    hand.train([[40.0] * 10] * 2, aggregation="frugal", evaluations=frugal)
    hand.train([[30.0] * 10] * 2, aggregation="thorough", evaluations=thorough)
    hand.train([[1.0] * 10] * 2, aggregation="none", evaluations=curve((1, 100, 1.0)))
    found = {one.question: one for one in winners(fields_of(launches(hand.read())))}
    assert {question: one.fields["aggregation"] for question, one in found.items()} == {
        "throughput": "quick",
        "accuracy": "thorough",
        "accuracy_in_time": "quick",
        "accuracy_in_epochs": "frugal",
    }
    assert found["throughput"].value.value == pytest.approx(3200)
    assert (found["accuracy_in_time"].budget, found["accuracy_in_time"].value.value) == (3.0, 0.81)
    assert (found["accuracy_in_epochs"].budget, found["accuracy_in_epochs"].value.value) == (2.0, 0.85)
    assert len(found["accuracy"].places) == 3


def accuracies(hand, **methods):
    """Who wins by final accuracy, of methods with one accuracy per seed."""
    for name, reached in methods.items():
        for seed, accuracy in enumerate(reached):
            hand.train([[10.0] * 10] * 2, aggregation=name, seed=seed, evaluations=curve((1, 1, accuracy)))
    return next(one for one in winners(fields_of(launches(hand.read()))) if one.question == "accuracy")


def rivals(winner):
    return [one.fields["aggregation"] for one in winner.rivals]


def test_seeds_count_by_their_mean_with_students_interval(hand):
    best = accuracies(hand, lucky=(0.9, 0.5, 0.5), steady=(0.7, 0.7, 0.73))
    reach = 4.302653 * math.sqrt(0.0003) / math.sqrt(3)
    assert best.fields["aggregation"] == "steady"
    assert tuple(best.value) == pytest.approx((0.71, 0.71 - reach, 0.71 + reach))


def test_a_winner_whose_interval_overlaps_another_is_not_told_from_it(hand):
    best = accuracies(hand, far=(0.50, 0.51, 0.52), near=(0.79, 0.80, 0.81), first=(0.80, 0.81, 0.82))
    assert best.fields["aggregation"] == "first"
    assert rivals(best) == ["near"]


def test_one_seed_has_no_interval_and_is_alike_only_to_its_equal(hand):
    best = accuracies(hand, first=(0.9,), equal=(0.9,), other=(0.89,))
    assert math.isnan(best.value.low)
    assert rivals(best) == ["equal"]


def test_a_single_value_is_inconclusive(hand):
    best = accuracies(hand, first=(0.88, 0.90, 0.92), once=(0.89,), low=(0.5, 0.51))
    assert (rivals(best), best.inconclusive) == ([], 1)
    assert accuracies(hand, other=(0.99,)).inconclusive == 3


def test_disturbed_launches_have_no_place(hand):
    loud = [{"wall_ns": 10**10, "foreign_ns": 5 * 10**9, "busy_ns": 10**10}] * 2
    rest = {
        "cpu_ns": 0,
        "foreign_error_ns": 0,
        "idle_cores": 0,
        "steal_ns": 0,
        "involuntary_switches": 0,
        "load": 1.0,
    }
    loud = [one | rest for one in loud]
    for name, ms in (("ring", 10.0), ("tree", 20.0)):
        fields = {"aggregation": name, "evaluations": curve((1, 1, 0.9))}
        hand.train([[ms] * 10] * 2, **fields, counters=loud if name == "ring" else None)
    async_ = {"training": "asynchronous", "aggregation": "own", "common_clock": True}
    hand.train([[5.0] * 20] * 2, **async_, evaluations=curve((1, 1, 0.95)), counters=loud)
    found = {one.question: one for one in winners(fields_of(launches(hand.read())))}
    placed = {name: [place.candidate.fields["aggregation"] for place in one.places] for name, one in found.items()}
    assert placed["throughput"] == placed["accuracy_in_time"] == ["tree"]
    assert sorted(placed["accuracy"]) == sorted(placed["accuracy_in_epochs"]) == ["ring", "tree"]
    assert (found["throughput"].disturbed, found["accuracy"].disturbed) == (2, 1)


def test_many_equal_methods_are_tied_with_the_best(hand):
    """Of 20 methods without a difference the best is by luck; unadjusted tests would find 0.05 of them behind."""
    rng = np.random.default_rng(3)
    for number in range(20):
        for launch in range(3):
            ms = 10 * np.exp(rng.normal(0, 0.02))
            hand.train([[ms] * 10] * 2, aggregation=f"scheme{number}", launch=launch)
    fastest, *_ = winners(fields_of(launches(hand.read())))
    assert len(fastest.rivals) == 19


def test_no_interval_of_an_accuracy_goes_beyond_one(hand):
    best = accuracies(hand, first=(0.97, 1.0))
    assert best.value.high == 1.0
    assert best.value.low > 0


def test_a_straggler_or_a_network_makes_another_field(hand):
    slow = {"straggler": "rank 1 5x slower", "settings": {"straggler": {"rank": 1, "factor": 5}}}
    for fields in ({"settings": {"trace": "steps"}}, slow, {"network": "lan", "settings": {"network": "lan"}}):
        hand.train([[10.0] * 10] * 2, **fields, evaluations=curve((1, 1, 0.9)))
    found = winners(fields_of(launches(hand.read())))
    assert [one.field.conditions for one in found if one.question == "throughput"] == [
        (),
        ("straggler rank 1 5x slower",),
        ("simulated on lan, 1 a host",),
    ]


def test_a_pause_now_and_then_counts_in_throughput(hand):
    hand.train([[10.0] * 2 + [10.0] * 9 + [110.0]] * 2, aggregation="pausing")
    hand.train([[15.0] * 12] * 2, aggregation="steady")
    fastest, *_ = winners(fields_of(launches(hand.read())))
    assert [one.candidate.fields["aggregation"] for one in fastest.places] == ["steady", "pausing"]
    assert fastest.places[1].interval.value == pytest.approx(10 * 32 / 0.2)


def test_on_one_rank_the_schemes_are_one_candidate(hand):
    for scheme, ms in (("ring", 10.0), ("tree", 20.0), ("native", 40.0)):
        hand.train([[ms] * 10], aggregation=scheme, evaluations=curve((1, 1, 0.9)))
    hand.train([[15.0] * 10] * 2, evaluations=curve((1, 1, 0.9)))
    throughput, accuracy, *_ = winners(fields_of(launches(hand.read())))
    assert (throughput.fields["aggregation"], throughput.fields["ranks"]) == ("ring", 2)
    assert (len(throughput.places), throughput.rivals) == (2, [])
    assert (accuracy.fields["aggregation"], accuracy.value.value, len(accuracy.rivals)) == ("any", 0.9, 1)
