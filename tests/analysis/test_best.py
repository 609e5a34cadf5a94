from hpcdl.analysis.best import winners


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
    found = {one.question: one for one in winners(hand.read())}
    assert {question: one.fields["aggregation"] for question, one in found.items()} == {
        "throughput": "quick",
        "accuracy": "thorough",
        "accuracy_in_time": "quick",
        "accuracy_in_epochs": "frugal",
    }
    assert found["throughput"].value == 3200
    assert (found["accuracy_in_time"].budget, found["accuracy_in_time"].value) == (3.0, 0.81)
    assert (found["accuracy_in_epochs"].budget, found["accuracy_in_epochs"].value) == (2.0, 0.85)
    assert found["accuracy"].candidates == 3


def test_seeds_count_by_their_median(hand):
    for seed, accuracy in enumerate((0.99, 0.5, 0.5)):
        hand.train([[10.0] * 10] * 2, aggregation="lucky", seed=seed, evaluations=curve((1, 1, accuracy)))
    hand.train([[10.0] * 10] * 2, aggregation="steady", evaluations=curve((1, 1, 0.6)))
    best = next(one for one in winners(hand.read()) if one.question == "accuracy")
    assert (best.fields["aggregation"], best.value) == ("steady", 0.6)


def test_on_one_rank_the_schemes_are_one_candidate(hand):
    for scheme, ms in (("ring", 10.0), ("tree", 20.0), ("native", 40.0)):
        hand.train([[ms] * 10], aggregation=scheme, evaluations=curve((1, 1, 0.9)))
    hand.train([[15.0] * 10] * 2, evaluations=curve((1, 1, 0.9)))
    throughput, accuracy, *_ = winners(hand.read())
    assert (throughput.fields["aggregation"], throughput.fields["ranks"]) == ("ring", 2)
    assert (throughput.candidates, throughput.alike) == (2, 1)
    assert (accuracy.fields["aggregation"], accuracy.value, accuracy.alike) == ("any", 0.9, 2)


def test_no_training_no_winner(hand):
    hand.case([[1.0] * 10], kind="collective", collective="allreduce", message_bytes=4)
    assert winners(hand.read()) == []
