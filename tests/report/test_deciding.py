"""The section on the time to the target: cells, methods over all cells, and searches."""

from hpcdl.report.run.findings import Findings
from hpcdl.report.sections import deciding


def evaluations(seconds):
    return [(10, 1.0, seconds / 2, 1.0, 0.4, 1), (20, 2.0, seconds, 0.5, 0.95, 1)]


def findings(hand, networks=("slow", "quick")):
    for network, factor in zip(networks, (1, 3), strict=False):
        for training, base in (("synchronous", 4.0), ("d_psgd", 2.0 * factor)):
            for seed in (1, 2, 3):
                hand.train(
                    [[10.0] * 20] * 2, training=training, network=network, seed=seed, target_accuracy=0.9, tuning=8,
                    tuned="learning_rate=0.05", tuning_images=4000, evaluations=evaluations(base + 0.01 * seed),
                )  # fmt: skip
    return Findings(hand.read(), "run")


def test_each_cell_has_its_first_and_the_methods_are_ranked_over_all(hand):
    found = findings(hand)
    section = deciding.page(found)
    cells, over_all, tuned = section.tables
    assert [(row[0], row[1], row[-1]) for row in cells.rows] == [
        ("slow", "d_psgd", "decided"),
        ("quick", "synchronous", "decided"),
    ]
    assert [row[0] for row in over_all.rows] == ["d_psgd", "synchronous"]
    assert [row[2] for row in over_all.rows] == ["1", "1"]
    assert {row[3] for row in tuned.rows} == {"learning_rate=0.05"}
    headline, details = deciding.answer(found)
    assert headline.startswith("Time to the target in 2 cells: 2 decided; first: ")
    assert details[0].startswith("Over all cells d_psgd is best")
    assert [chart.title for chart in deciding.charts(found)] == ["Performance profiles"]
