"""Time to the target in the table Scaling: twice as many images a second, but not half the time to the accuracy."""

from hpcdl.report.render import render


def test_time_to_target_is_in_the_row_or_not_reached(hand, row):
    for ranks, times in {1: (8.0, 8.0), 2: (5.0, 5.0), 4: (2.0, None)}.items():
        for seed, time in enumerate(times, 1):
            at_end = [(32, 4.0, time or 1.0, 0.3, 0.95 if time else 0.5, 2048)]
            whole = {"scaling": "weak", "batch_per_rank": 16, "global_batch": 16 * ranks, "target_accuracy": 0.9}
            hand.train([[80.0] * 22] * ranks, ranks=ranks, seed=seed, evaluations=at_end, **whole)
    page = render([hand.read()], "markdown")
    assert row(page, "ring", "2")[-2] == "5.00 s"
    assert row(page, "ring", "4")[-2] == "not reached"
    assert "best accuracy" in page  # of interest where a target is missed
