"""Time to the target in the table Scaling: twice as many images a second, but not half the time to the accuracy."""

import re

from conftest import Hand

from hpcdl.report.render import render
from hpcdl.report.run.findings import Findings
from hpcdl.report.sections import scaling


def run_of(hand, seconds_to_target, **fields):
    """``seconds_to_target``: by ranks, of each seed; None: not reached."""
    for ranks, times in seconds_to_target.items():
        for seed, time in enumerate(times, 1):
            at_end = [(32, 4.0, time or 1.0, 0.3, 0.95 if time else 0.5, 2048)]
            whole = {"scaling": "weak", "batch_per_rank": 16, "global_batch": 16 * ranks, "target_accuracy": 0.9}
            hand.train([[80.0] * 22] * ranks, ranks=ranks, seed=seed, evaluations=at_end, **whole, **fields)
    return hand.read(suite_text="[suite]\nname = 's'\nanswer = 'time_to_target'\n")


def test_time_to_target_is_in_the_row_and_its_speed_up_in_the_answer(hand, row):
    page = render([run_of(hand, {1: (8.0, 8.0), 2: (5.0, 5.0), 4: (2.0, None)})], "markdown")
    line = "LeNet-5 reaches 90 % accuracy first on 2 ranks, 1.60 times as fast as on 1."
    assert line in page
    assert row(page, "ring", "2")[-2] == "5.00 s"
    assert row(page, "ring", "4")[-2] == "not reached"
    assert re.search("final accuracy .* best accuracy", page)


def test_ranks_whose_times_differ_by_less_than_their_seeds_are_not_told_apart(hand, tmp_path):
    """Four ranks are the soonest, but not told from two; with wider times not from one."""
    page = render([run_of(hand, {1: (8.0, 8.1, 7.9), 2: (5.0, 6.0, 5.5), 4: (5.9, 4.9, 5.4)})], "markdown")
    assert "first on 4 ranks, 1.4" in page and "times as fast as on 1; 2 may be as fast." in page
    assert not re.search("final accuracy .* best accuracy", page)  # of interest where a target is missed
    (chart,) = scaling.soonest_charts(Findings(hand.read(), "run"))
    assert tuple(chart.series[0].points[0]) == (1, 8.0, 7.9, 8.1)
    page = render([run_of(Hand(tmp_path / "wide"), {1: (2.0, 8.0), 4: (1.9, 7.9)})], "markdown")
    assert "Not decided whether 4 ranks are faster than 1: LeNet-5 reaches 90 % accuracy 1.0" in page


def test_each_sentence_appears_and_a_decided_gain_comes_first(hand):
    late = {"lenet5": (2.0, 2.1), "nin": (0.9, 0.3), "vgg16": (0.5, 0.5), "alexnet": (0.5,)}
    for model, times in late.items():
        run = run_of(hand, {1: [1.0] * len(times), 2: times}, model=model)
    first, details, *_ = scaling.soonest_answer(Findings(run, "run"))
    assert first == "VGG-16 reaches 90 % accuracy first on 2 ranks, 2.00 times as fast as on 1."
    assert {
        "More ranks do not save time: LeNet-5 reaches 90 % accuracy first on 1 rank.",
        "One seed decides nothing: with it AlexNet reaches 90 % accuracy 2.00 times as fast on 2 ranks as on 1.",
    } < {*details}
    assert any(line.startswith("Not decided whether 2 ranks are faster than 1: NiN ") for line in details)
